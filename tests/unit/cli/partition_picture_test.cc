#include "cli/html/partition_picture.h"
#include "cli/text/partition_words.h"

#include <gtest/gtest.h>

namespace orrery::cli {
namespace {

plan::Sequence parse(std::string_view text) { return plan::parse_sequence(text).value(); }

std::size_t count(const std::string& text, std::string_view part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(PartitionPicture, Words) {
  EXPECT_EQ(words_of(parse("K,P2x2")),
            "id bit 1 splits K (output features) in 2; bits 2 to 3 are P2x2: M, N and K in 2 each, "
            "2 steps");
  EXPECT_EQ(words_of(parse("R,B")),
            "over id bit 1 devices do the same; id bit 2 splits B (batch) in 2");
  EXPECT_EQ(words_of({}), "");
}

TEST(PartitionPicture, NamesEveryDeviceOfEveryBlock) {
  // P2x2: 3 phases of 2 steps, 3 tensors of 4 blocks; each block on one device.
  const std::string svg = draw_partitions({{"mlp in", parse("P2x2")}});
  EXPECT_EQ(count(svg, "<rect"), 3 * 2 * 3 * 4 + 1);  // and the page's own
  for (const char* device : {">0<", ">1<", ">2<", ">3<"})
    EXPECT_EQ(count(svg, device), 3U * 2 * 3) << device;
  EXPECT_EQ(count(svg, "travelling meanwhile: dW<"), 1U);
  // K alone: the input is on both devices.
  EXPECT_EQ(count(draw_partitions({{"qkv", parse("K")}}), ">0 1<"), 3U);
}

}  // namespace
}  // namespace orrery::cli
