#include "executor/measure/rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "executor/measure/control.h"

namespace orrery::executor {
namespace {

using testing::ElementsAre;

TEST(RoundOrder, IsRotatedByTheRoundAndEverySecondIsReversed) {
  EXPECT_THAT(round_order(4, 0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(round_order(4, 1), ElementsAre(0, 3, 2, 1));
  EXPECT_THAT(round_order(4, 2), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(round_order(4, 7), ElementsAre(2, 1, 0, 3));
  EXPECT_THAT(round_order(1, 3), ElementsAre(0));
  EXPECT_TRUE(round_order(0, 3).empty());
}

TEST(RoundOrder, EveryProgramTrainsOnceInEveryRound) {
  for (int round = 0; round < 9; ++round) {
    const auto order = round_order(8, round);
    EXPECT_EQ(std::set<std::size_t>(order.begin(), order.end()).size(), 8U) << round;
  }
}

TEST(ControlSummary, IsTheMedianAndHalfTheRangeOfTheComputeTime) {
  const std::vector<model::Control> timings{{.compute_seconds = 0.012, .collective_seconds = 3e-4},
                                            {.compute_seconds = 0.010, .collective_seconds = 5e-4},
                                            {.compute_seconds = 0.011, .collective_seconds = 1e-4}};
  const model::Control c = summary_of(timings);
  EXPECT_DOUBLE_EQ(c.compute_seconds, 0.011);
  EXPECT_DOUBLE_EQ(c.collective_seconds, 3e-4);
  EXPECT_NEAR(c.spread, 0.001 / 0.011, 1e-12);
}

}  // namespace
}  // namespace orrery::executor
