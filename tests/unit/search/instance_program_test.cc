#include "search/table/instance_program.h"

#include <gtest/gtest.h>

#include "search/proof/certificate_check.h"
#include "search/table/instance_repair.h"

namespace orrery::search {
namespace {

Instance two_layers(std::int64_t budget) {
  return {.budget_bytes = budget,
          .layers = {{{"fast", 1, 8}, {"small", 4, 2}}, {{"fast", 1, 6}, {"small", 2, 3}}},
          .transition_ps = {}};
}

TEST(InstanceProgram, WorkedExample) {
  const Solution s = solve_instance(two_layers(11));
  EXPECT_EQ(s.status, Status::kOptimal);
  EXPECT_EQ(s.choices, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(s.time_ps, 3);
  EXPECT_EQ(s.memory_bytes, 11);
  EXPECT_EQ(s.multiplier, (Multiplier{1, 3}));
  EXPECT_EQ(s.bound_ps, 3);
  EXPECT_EQ(s.gap, 0);
}

TEST(InstanceProgram, TransitionsCanMakeTheSlowerOptionBest) {
  Instance instance = two_layers(11);
  instance.transition_ps = {{0, 9, 9, 0}};
  const Solution s = solve_instance(instance);
  // fast-small 3 + 9, small-fast 5 + 9, small-small 6.
  EXPECT_EQ(s.choices, (std::vector<std::int32_t>{1, 1}));
  EXPECT_EQ(s.time_ps, 6);
}

TEST(InstanceProgram, RunsOfTwoTypes) {
  const std::vector<InstanceOption> run{{"fast", 1, 4}, {"small", 3, 1}};
  const Instance instance{
      .budget_bytes = 7, .layers = {run, run, {{"only", 5, 2}}, run}, .transition_ps = {}};
  Instance three = instance;
  three.layers.pop_back();
  // Free transitions: equal layers anywhere are one run. Two of them: fast + small + only.
  const Solution s = solve_instance(three);
  EXPECT_EQ(s.time_ps, 9);
  EXPECT_EQ(s.memory_bytes, 7);
  EXPECT_EQ(s.multiplier, (Multiplier{2, 3}));
  EXPECT_EQ(s.bound_ps, 9);
  // A third one leaves room for small ones only.
  EXPECT_EQ(solve_instance(instance).time_ps, 14);
}

// A run may begin and end in one layout with another between: neighbours want layout 0 at both
// ends, memory layout 1 inside.
TEST(InstanceProgram, ARunMayReturnToTheLayoutItBeganIn) {
  const std::vector<InstanceOption> ends{{"a", 1, 1}, {"b", 90, 1}},
      inside{{"a", 1, 10}, {"b", 2, 1}};
  const Instance instance{.budget_bytes = 26,
                          .layers = {ends, ends, inside, inside, inside, inside, ends, ends},
                          .transition_ps = {{0, 3, 3, 0}}};
  const Solution s = solve_instance(instance);
  EXPECT_EQ(s.choices, (std::vector<std::int32_t>{0, 0, 0, 1, 1, 0, 0, 0}));
  Instance dear = instance;
  dear.transition_ps = {{0, 30, 30, 0}};
  dear.budget_bytes = 35;
  EXPECT_TRUE(check_solution(dear, solve_instance(dear)).holds());
  EXPECT_EQ(solve_instance(dear).time_ps, 4 + 3 + 2 + 60);
}

TEST(InstanceProgram, InfeasibleNamesTheLeastMemory) {
  const Solution s = solve_instance(two_layers(4));
  EXPECT_EQ(s.status, Status::kInfeasible);
  EXPECT_EQ(s.least_memory_bytes, 5);
  EXPECT_TRUE(s.choices.empty());
  EXPECT_TRUE(check_solution(two_layers(4), s).holds());
}

TEST(InstanceProgram, TiesGoToLessMemoryThenToTheSmallestOptions) {
  const Instance instance{
      .budget_bytes = 20,
      .layers = {{{"a", 3, 5}, {"b", 3, 4}, {"c", 3, 4}}, {{"a", 2, 6}, {"b", 2, 6}}},
      .transition_ps = {}};
  EXPECT_EQ(solve_instance(instance).choices, (std::vector<std::int32_t>{1, 0}));
}

TEST(InstanceProgram, FirstAnswersJoinTwoPaths) {
  const std::vector<InstanceOption> layer{{"fast", 1, 8}, {"light", 4, 2}};
  const Instance instance{.budget_bytes = 18, .layers = {layer, layer, layer}, .transition_ps = {}};
  InstanceAnswer answer{{12, 6}, {1, 1, 1}};
  repair(instance, {0, 0, 0}, answer);
  EXPECT_EQ(answer.totals.time_ps, 6);
  EXPECT_EQ(answer.totals.memory_bytes, 18);
  EXPECT_EQ(answer.choices, (std::vector<std::int32_t>{0, 0, 1}));
}

TEST(InstanceProgram, FirstAnswersPayTheirJointAndImproveLayerByLayer) {
  // a = (0, 0, 0) over the budget, b = (1, 1, 1) within; a change of layout costs 1. One layer of a
  // at either end: 1 + 1 + 4 + 4.
  const std::vector<InstanceOption> layer{{"fast", 1, 8}, {"light", 4, 2}};
  Instance instance{
      .budget_bytes = 12, .layers = {layer, layer, layer}, .transition_ps = {{0, 1, 1, 0}}};
  InstanceAnswer answer{{12, 6}, {1, 1, 1}};
  repair(instance, {0, 0, 0}, answer);
  EXPECT_EQ(answer.totals.time_ps, 10);
  EXPECT_EQ(answer.totals.memory_bytes, 12);
  // Without a second path single changes alone find it.
  answer = {{12, 6}, {1, 1, 1}};
  repair(instance, {}, answer);
  EXPECT_EQ(answer.totals.time_ps, 10);
}

TEST(InstanceProgram, EffortLimitLeavesACertifiedGap) {
  // Every choice on one line: the Lagrangian cannot tell them apart, the question is a subset sum.
  Instance instance;
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < 40; ++i) {
    const std::int64_t memory = 1'000'000'007 + i * i * 7'368'787 + i * 104'729;
    instance.layers.push_back({{"big", 0, memory}, {"small", memory, 0}});
    total += memory;
  }
  instance.budget_bytes = total / 2 - 1;
  const Solution s = solve_instance(instance, 20'000);
  EXPECT_EQ(s.status, Status::kBudget);
  EXPECT_LE(s.states, 20'001U);
  EXPECT_LT(s.gap, 0.01);
  EXPECT_TRUE(check_solution(instance, s).holds());
}

}  // namespace
}  // namespace orrery::search
