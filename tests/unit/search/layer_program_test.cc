// Worked examples of the headers, and what a limit on effort still proves.
#include "search/programs/layer_program.h"

#include <gtest/gtest.h>

#include "search/programs/layer_relaxation.h"
#include "search/programs/pipeline_program.h"

namespace orrery::search {
namespace {

LayerProblem worked_example() {
  LayerProblem p;
  p.layers = 4;
  p.options = {{.steady_ps = 1, .memory_bytes = 10},
               {.steady_ps = 3, .memory_bytes = 4, .transient_bytes = 2}};
  p.budget_bytes = 30;
  return p;
}

TEST(LayerProgram, WorkedExample) {
  Effort effort;
  const Bounded found = solve_layers(worked_example(), {1, 0}, kNoAnswer, effort);
  ASSERT_TRUE(found.answer.has_value());
  EXPECT_EQ(found.answer->sequence, (std::vector<std::int32_t>{1, 1, 0, 0}));
  EXPECT_EQ(found.answer->steady_ps, 8);
  EXPECT_EQ(found.answer->memory_bytes, 30);
}

TEST(LayerProgram, TransientsOfEarlyLayersStandBesideFewerStashes) {
  // B's transient of 6 beside two stashes of A given back: 2·10 + 2·4 + max(6 - 2·5, 0) = 28.
  LayerProblem p = worked_example();
  p.options[0].stash_bytes = 5;
  p.options[1].transient_bytes = 6;
  p.budget_bytes = 28;
  Effort effort;
  const Bounded found = solve_layers(p, {1, 0}, kNoAnswer, effort);
  ASSERT_TRUE(found.answer.has_value());
  EXPECT_EQ(found.answer->steady_ps, 8);
  EXPECT_EQ(found.answer->memory_bytes, 28);
}

TEST(LayerRelaxation, ValuesWhoseProductsPass128BitsAreCompared) {
  // 2,560 micro-batches of a minute each, 24 GiB in sixteenths
  const auto of = [](std::int64_t scale, std::int64_t whole, std::int64_t rest) {
    LinearRelaxation lp{.feasible = true};
    lp.scale = scale;
    lp.value = static_cast<__int128>(whole) * scale + rest;
    return lp;
  };
  constexpr std::int64_t kScale = 412'316'860'416, kWhole = 153'600'000'000'000'000;
  const LinearRelaxation less = of(kScale, kWhole, 1), more = of(kScale - 1, kWhole, 2);
  EXPECT_TRUE(more.above(less));
  EXPECT_FALSE(less.above(more));
  EXPECT_FALSE(less.above(less));
  EXPECT_TRUE(of(kScale, kWhole + 1, 0).above(more));
}

TEST(LayerProgram, NothingFitsIsNoAnswer) {
  LayerProblem p = worked_example();
  p.budget_bytes = 17;
  Effort effort;
  EXPECT_FALSE(solve_layers(p, {1, 1}, kNoAnswer, effort).answer.has_value());
  EXPECT_EQ(least_memory(p), 18);
  p.budget_bytes = 15;
  EXPECT_TRUE(solve_layers(p, {1, 1}, kNoAnswer, effort).bound == kNoAnswer);
}

TEST(LayerProgram, TheCutoffIsExclusive) {
  Effort effort;
  EXPECT_FALSE(solve_layers(worked_example(), {1, 0}, 8, effort).answer.has_value());
  EXPECT_TRUE(solve_layers(worked_example(), {1, 0}, 9, effort).answer.has_value());
}

TEST(LayerProgram, AnExhaustedEffortSaysSoAndKeepsItsBound) {
  Effort effort{.limit = 1};
  const Bounded found = solve_layers(worked_example(), {1, 0}, kNoAnswer, effort);
  EXPECT_TRUE(effort.exhausted || found.answer.has_value());
  EXPECT_TRUE(found.bound <= 8);
}

TEST(LayerProgram, LayoutsStandTogetherAndPayTheirWay) {
  LayerProblem p;
  p.layers = 3;
  p.layouts = 2;
  p.options = {{.steady_ps = 1, .memory_bytes = 10, .layout = 0},
               {.steady_ps = 4, .memory_bytes = 1, .layout = 1}};
  p.transition_ps = {0, 5, 5, 0};
  p.entry_ps = {0, 5};
  p.exit_ps = {5, 0};
  p.budget_bytes = 12;
  // One layer of layout 0 first, then two of layout 1: 1 + 5 + 8 = 14; only layout 1: 5 + 12 = 17.
  Effort effort;
  const Bounded found = solve_layers(p, {1, 1}, kNoAnswer, effort);
  ASSERT_TRUE(found.answer.has_value());
  EXPECT_EQ(found.answer->sequence, (std::vector<std::int32_t>{0, 1, 1}));
  EXPECT_EQ(found.answer->steady_ps, 14);
}

TEST(LayerRelaxation, WorkedExample) {
  const std::vector<Item> items{{1, 10}, {3, 4}};
  const LinearRelaxation lp = relax(items, 4, 28);
  ASSERT_TRUE(lp.feasible);
  EXPECT_TRUE(lp.scale == 6 && lp.value == 48);
}

TEST(PipelineProgram, WorkedExample) {
  PipelineProblem p;
  p.layers = 2;
  p.micro_batches = 3;
  PipelineStage stage;
  stage.layers.options = {{.steady_ps = 4, .once_ps = 0}, {.steady_ps = 3, .once_ps = 2}};
  p.stages = {stage, stage};
  p.stages.front().send_ps = {0};
  Effort effort;
  const auto found = solve_pipeline(p, kForbidden, effort);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->cost_ps, 16);
}

TEST(PipelineProgram, UnevenCountsGoWhereTheyCostLeast) {
  // Three layers on two stages; the second stage carries a head of 5: it takes one layer.
  PipelineProblem p;
  p.layers = 3;
  p.micro_batches = 4;
  PipelineStage stage;
  stage.most = 2;
  stage.layers.options = {{.steady_ps = 4}};
  p.stages = {stage, stage};
  p.stages.front().send_ps = {0};
  p.stages.back().steady_ps = 5;
  Effort effort;
  const auto found = solve_pipeline(p, kForbidden, effort);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->stages[0].sequence.size(), 2U);
  EXPECT_EQ(found->cost_ps, 8 + 9 + 3 * 9);
}

}  // namespace
}  // namespace orrery::search
