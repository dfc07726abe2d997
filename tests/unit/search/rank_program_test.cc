#include "search/programs/rank_program.h"

#include <gtest/gtest.h>

namespace orrery::search {
namespace {

RankChoice layers_of(int layers) {
  return {
      .layers = layers, .forward_ps = layers, .backward_ps = 2 * layers, .cycle_ps = 3 * layers};
}

TEST(RankProgram, WorkedExample) {
  const RankProblem problem{
      .ranks = {{layers_of(1)}, {layers_of(1), layers_of(2)}}, .layers = 3, .cycles = 2};
  Effort effort;
  const auto answer = solve_ranks(problem, kForbidden, effort);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->cost_ps, 21);
  ASSERT_EQ(answer->choices.size(), 2U);
  EXPECT_EQ(answer->choices[1].layers, 2);
}

TEST(RankProgram, TheCutoffIsExclusive) {
  const RankProblem problem{.ranks = {{layers_of(1)}, {layers_of(2)}}, .layers = 3, .cycles = 2};
  Effort effort;
  EXPECT_FALSE(solve_ranks(problem, 21, effort).has_value());
  EXPECT_TRUE(solve_ranks(problem, 22, effort).has_value());
}

TEST(RankProgram, LayersThatNoRanksHoldHaveNoAnswer) {
  const RankProblem problem{.ranks = {{layers_of(1)}, {layers_of(1)}}, .layers = 3, .cycles = 2};
  Effort effort;
  EXPECT_FALSE(solve_ranks(problem, kForbidden, effort).has_value());
}

TEST(RankProgram, AnUpdateThatReachesBeyondTheFirstRanksCounts) {
  RankChoice late = layers_of(1);
  late.update_ps = 100;
  const RankProblem problem{.ranks = {{layers_of(1)}, {late}}, .layers = 2, .cycles = 1};
  Effort effort;
  const auto answer = solve_ranks(problem, kForbidden, effort);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->cost_ps, 2 + 3 + 100 + 2);  // not 2 + 3 + 4
}

}  // namespace
}  // namespace orrery::search
