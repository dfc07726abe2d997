#include "cli/measured/replay_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace orrery::cli {
namespace {

plan::Span span(std::uint32_t index, std::string phase, std::int64_t duration_ps) {
  plan::Span s;
  s.template_id = 7;
  s.template_index = index;
  s.phase = std::move(phase);
  s.duration_ps = duration_ps;
  return s;
}

TEST(ReplayedCompute, IsTheMeanOfAnOperationsOccurrences) {
  const std::vector<plan::Span> spans{span(0, "F", 10), span(0, "F", 20), span(1, "", 500),
                                      span(2, "BG", 40)};
  sim::ComputeTimes times;
  add_compute_times(spans, 3, times);
  EXPECT_EQ(times, (sim::ComputeTimes{{{3, 7, 0}, 15}, {{3, 7, 2}, 40}}));
  EXPECT_DOUBLE_EQ(compute_seconds(spans), 70e-12);
}

TEST(ReplayReport, SaysWhatIsLeftToTheModelWhereEveryClassWasReplayed) {
  ReplayReport report{.device = "cpu",
                      .steps = 3,
                      .rows = {{.stage = 1,
                                .first_rank = 512,
                                .ranks = 512,
                                .rank = 512,
                                .compute_s = {1.1, 1.0},
                                .communication_s = 0.2,
                                .step_s = {1.2, 1.25},
                                .peak_bytes = {1 << 30, 1 << 30}}},
                      .predicted_step_s = 2.1,
                      .fed_back = {}};
  EXPECT_THAT(
      to_text(report),
      testing::AllOf(testing::HasSubstr("512..1023"), testing::HasSubstr("+10.0%"),
                     testing::HasSubstr("-4.0%"), testing::Not(testing::HasSubstr("bubble"))));
  report.fed_back = {.step_s = 2.0, .exposed_communication = 0.1, .bubble = 0.15};
  EXPECT_THAT(to_text(report),
              testing::AllOf(testing::HasSubstr("with computation as replayed 2 s (+5.0 %)"),
                             testing::HasSubstr("75.0 % computation, replayed; 10.0 % exposed "
                                                "communication and 15.0 % bubble, model")));
}

}  // namespace
}  // namespace orrery::cli
