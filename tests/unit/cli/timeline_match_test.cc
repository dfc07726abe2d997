#include "cli/measured/timeline_match.h"

#include <gtest/gtest.h>

namespace orrery::cli {
namespace {

plan::Span span(std::int32_t rank, std::uint32_t index, std::int32_t micro_batch, std::int64_t ps,
                const char* name = "qkv") {
  plan::Span s;
  s.rank = rank;
  s.name = name;
  s.phase = "F";
  s.layer = 0;
  s.micro_batch = micro_batch;
  s.template_index = index;
  s.duration_ps = ps;
  return s;
}

TEST(TimelineMatch, SumsWhatBothHave) {
  plan::Timeline predicted, measured;
  predicted.program_fingerprint = measured.program_fingerprint = "p";
  predicted.spans = {span(0, 0, 0, 10), span(0, 0, 1, 10), span(0, 1, 0, 5, "only predicted")};
  measured.spans = {span(0, 0, 0, 11), span(0, 0, 1, 13), span(0, 7, 0, 5, "only measured"),
                    span(1, 0, 0, 99)};
  const auto m = match_timelines(predicted, measured).value();
  ASSERT_EQ(m.rows.size(), 1U);
  EXPECT_EQ(m.rows[0].name, "qkv F");
  EXPECT_EQ(m.rows[0].count, 2);
  EXPECT_EQ(m.rows[0].predicted_ps, 20);
  EXPECT_EQ(m.rows[0].measured_ps, 24);
  EXPECT_EQ(m.matched, 2);
  EXPECT_EQ(m.only_predicted, 1);
  EXPECT_EQ(m.only_measured, 1);  // rank 1 is in one timeline only and is left out
}

TEST(TimelineMatch, DifferentProgramsAreRefused) {
  plan::Timeline predicted, measured;
  predicted.program_fingerprint = "p";
  measured.program_fingerprint = "q";
  EXPECT_FALSE(match_timelines(predicted, measured));
}

}  // namespace
}  // namespace orrery::cli
