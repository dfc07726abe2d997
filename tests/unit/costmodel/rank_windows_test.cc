#include <array>

#include "costmodel/closed_form/rank_windows.h"

#include <gtest/gtest.h>

#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

TEST(RankWindows, AllPairsOnOneSwitchAreAlike) {
  const auto topology = machines::cluster(8);
  RankWindows windows(topology);
  for (int first = 0; first < 8; first += 2) EXPECT_EQ(windows.canonical(first, 2), 0);
  EXPECT_EQ(windows.canonical(3, 2), 3) << "not at a multiple of its size";
}

TEST(RankWindows, PairsAcrossSocketsAreNotLikePairsBelowOneSwitch) {
  const auto topology = topologies::catalog_topology("rtx-titan-pcie", 2).value();
  RankWindows windows(topology);
  EXPECT_EQ(windows.canonical(4, 4), 0);
  EXPECT_EQ(windows.canonical(12, 4), 0) << "the other host's second socket";
  EXPECT_EQ(windows.canonical(8, 8), 0) << "a whole host";
  EXPECT_EQ(windows.canonical(5, 3), 5) << "half of it beyond the host's middle";
}

TEST(RankWindows, SlowerLinksMakeADifference) {
  topologies::TopologyBuilder b("lopsided");
  const auto model = b.add_model(machines::device());
  const auto hub = b.add_vertex(topologies::VertexKind::kSwitch, "switch", 0);
  for (int i = 0; i < 4; ++i) {
    b.add_duplex(b.add_device("gpu" + std::to_string(i), 0, model), hub,
                 i < 2 ? 100'000'000'000 : 50'000'000'000, base::Seconds(1e-6), "nvlink");
  }
  const auto topology = std::move(b).build_cluster(std::array{1U}, std::nullopt).value();
  RankWindows windows(topology);
  EXPECT_EQ(windows.canonical(2, 2), 2);
  EXPECT_EQ(windows.canonical(1, 1), 0) << "alone a device uses no link";
}

}  // namespace
}  // namespace orrery::costmodel
