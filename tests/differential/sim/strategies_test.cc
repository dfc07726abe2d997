/// Every strategy dimension beyond degrees and ZeRO: the simulated Program against the closed form,
/// time and memory.
#include <gtest/gtest.h>

#include "costmodel/closed_form/closed_form.h"
#include "model/spec.h"
#include "plan/lowering/lower.h"
#include "sim/simulate.h"

namespace orrery::sim {
namespace {

using plan::ContextKind;
using plan::LayerStrategy;
using plan::Recompute;
using plan::ShardedOperators;

/// Two layers of each strategy, on four ranks.
plan::Plan plan_of(const model::ModelSpec& model, const LayerStrategy& vocabulary,
                   const LayerStrategy& first, const LayerStrategy& second) {
  plan::Plan p = plan::uniform_plan(model, "dgx-a100", 1,
                                    {.dp = 4, .micro_batch = 1, .global_batch = 8, .sequence = 64})
                     .value();
  p.vocabulary = vocabulary;
  const int half = p.stages[0].layers() / 2;
  p.stages[0].runs = {{.count = half, .strategy = first},
                      {.count = p.stages[0].layers() - half, .strategy = second}};
  return p;
}

struct Case {
  const char* name;
  LayerStrategy vocabulary, first, second;
};
std::vector<Case> cases() {
  const LayerStrategy plain{.dp = 4}, hybrid{.dp = 4, .zero = 3, .shard = 2},
      ring{.dp = 2, .cp = 2}, around{.cp = 4};
  const LayerStrategy ulysses{.dp = 2, .zero = 2, .cp = 2, .context = ContextKind::kUlysses};
  const LayerStrategy both{
      .tp = 2, .sequence_parallel = true, .recompute = Recompute::kFull, .cp = 2};
  return {
      {"hybrid", plain, hybrid, {.dp = 4, .zero = 1, .shard = 2}},
      {"ring", ring, ring, {.dp = 2, .recompute = Recompute::kSelective, .cp = 2}},
      {"long ring", around, around, around},
      {"ulysses", ulysses, ulysses, ring},
      {"tensor and context",
       {.tp = 2, .cp = 2},
       both,
       {.tp = 2, .cp = 2, .context = ContextKind::kUlysses}},
      {"strided",
       {.tp = 2, .dp = 2, .strided = true},
       {.tp = 2, .dp = 2, .zero = 3, .sequence_parallel = true, .strided = true},
       {.tp = 2, .dp = 2}},
      {"operators",
       plain,
       {.dp = 4, .zero = 3, .operators = ShardedOperators::kAttention},
       {.dp = 4,
        .zero = 3,
        .grad_reduce = plan::GradReduce::kMicroBatch,
        .operators = ShardedOperators::kMlp}},
      {"slices",
       plain,
       {.dp = 4, .zero = 3, .slices = 2},
       {.dp = 4,
        .zero = 3,
        .recompute = Recompute::kFull,
        .grad_reduce = plan::GradReduce::kMicroBatch,
        .operators = ShardedOperators::kMlp,
        .slices = 4}},
      {"at the end",
       {.dp = 4, .grad_reduce = plan::GradReduce::kEnd},
       {.dp = 4, .zero = 3, .grad_reduce = plan::GradReduce::kEnd},
       {.tp = 2, .dp = 2, .zero = 1, .grad_reduce = plan::GradReduce::kEnd}},
      {"context and data", plain, ring, {.tp = 2, .dp = 2}},
      {"pieces",
       {.tp = 2, .dp = 2},
       {.tp = 2, .dp = 2, .sequence_parallel = true, .tensor_pieces = 2},
       {.tp = 2,
        .dp = 2,
        .sequence_parallel = true,
        .recompute = Recompute::kFull,
        .tensor_pieces = 4}},
  };
}

SimReport simulated(const plan::Plan& plan, const costmodel::CostModel& cost) {
  return simulate(plan::lower(plan, cost.model()).value(), cost).value();
}
costmodel::CostModel cost_model(const std::string& name, bool overlaps, double slowdown = 1,
                                model::Precision precision = model::Precision::kBFloat16) {
  model::Profile profile;
  profile.name = "flags";
  profile.overlaps = overlaps;
  profile.overlap_slowdown = slowdown;
  profile.context_bytes = 1 << 20;
  return costmodel::CostModel::make(
             model::find_model(name).value(),
             topologies::catalog_topology(precision == model::Precision::kBFloat16 ? "dgx-a100"
                                                                                   : "dgx-b200")
                 .value(),
             profile, {.precision = precision, .sequence = 64})
      .value();
}

TEST(Strategies, ClosedFormEqualsTheSimulationInEveryFormat) {
  for (int p = as_int(model::Precision::kFp8Delayed); p <= as_int(model::kLastPrecision); ++p) {
    const auto precision = static_cast<model::Precision>(p);
    const costmodel::CostModel cost = cost_model("llama-tiny", false, 1, precision);
    for (const Case& c : cases()) {
      plan::Plan plan = plan_of(cost.model(), c.vocabulary, c.first, c.second);
      plan.precision = precision;
      EXPECT_EQ(simulated(plan, cost).step_time_ps,
                costmodel::plan_cost(cost, plan).value().step_ps)
          << model::to_string(precision) << " " << c.name;
    }
  }
}

TEST(Strategies, ClosedFormEqualsTheSimulationOfOneStageWithoutOverlap) {
  for (const char* model : {"gpt2-tiny", "llama-tiny"}) {
    const costmodel::CostModel cost = cost_model(model, false);
    for (const Case& c : cases()) {
      const plan::Plan plan = plan_of(cost.model(), c.vocabulary, c.first, c.second);
      EXPECT_EQ(simulated(plan, cost).step_time_ps,
                costmodel::plan_cost(cost, plan).value().step_ps)
          << model << " " << c.name;
    }
  }
}

TEST(Strategies, PeakMemoryEqualsTheReports) {
  const costmodel::CostModel cost = cost_model("llama-tiny", true);
  for (const Case& c : cases()) {
    const plan::Plan plan = plan_of(cost.model(), c.vocabulary, c.first, c.second);
    EXPECT_EQ(simulated(plan, cost).stages[0].peak_memory_bytes,
              costmodel::plan_cost(cost, plan).value().stage_peak_bytes[0] + cost.context_bytes())
        << c.name;
  }
}

TEST(Strategies, ClosedFormIsNearTheSimulationWithOverlap) {
  for (const double slowdown : {1.0, 1.25}) {
    const costmodel::CostModel cost = cost_model("llama-tiny", true, slowdown);
    for (const Case& c : cases()) {
      const plan::Plan plan = plan_of(cost.model(), c.vocabulary, c.first, c.second);
      const double ratio = static_cast<double>(simulated(plan, cost).step_time_ps) /
                           static_cast<double>(costmodel::plan_cost(cost, plan).value().step_ps);
      EXPECT_NEAR(ratio, 1.0, 0.10) << c.name << " " << slowdown;
    }
  }
}

/// Beside the backward reductions hide, behind it they do not: between the step that overlaps and
/// the one that overlaps nothing.
TEST(Strategies, ReductionsAtTheEndHideBehindNoBackward) {
  const costmodel::CostModel apart = cost_model("llama-tiny", false),
                             beside = cost_model("llama-tiny", true);
  const LayerStrategy early{.dp = 4}, late{.dp = 4, .grad_reduce = plan::GradReduce::kEnd};
  const auto step = [](const LayerStrategy& s, const costmodel::CostModel& cost) {
    return simulated(plan_of(cost.model(), s, s, s), cost);
  };
  const SimReport hidden = step(early, beside), exposed = step(late, beside),
                  in_turn = step(late, apart);
  EXPECT_LT(hidden.step_time_ps, exposed.step_time_ps);
  EXPECT_LT(exposed.step_time_ps, in_turn.step_time_ps);
  EXPECT_EQ(in_turn.step_time_ps, step(early, apart).step_time_ps);
}

/// In pieces the tensor group talks beside the products; in turn it takes no less than as a whole.
TEST(Strategies, PiecesOfTensorCollectivesHideBehindProducts) {
  const costmodel::CostModel apart = cost_model("llama-tiny", false),
                             beside = cost_model("llama-tiny", true);
  const LayerStrategy whole{.tp = 4, .sequence_parallel = true},
      pieces{.tp = 4, .sequence_parallel = true, .tensor_pieces = 4}, alone{.tp = 4};
  const auto step = [&](const LayerStrategy& s, const costmodel::CostModel& cost) {
    return simulated(plan_of(cost.model(), alone, s, s), cost);
  };
  EXPECT_GE(step(pieces, apart).step_time_ps, step(whole, apart).step_time_ps);
  EXPECT_LT(step(pieces, beside).step_time_ps, step(pieces, apart).step_time_ps);
}

/// The wire is beside the blocks: with overlap a long ring takes no more than its compute and the
/// shifts that nothing hides.
TEST(Strategies, ARingHidesItsShiftsBehindTheBlocks) {
  const costmodel::CostModel apart = cost_model("llama-tiny", false),
                             beside = cost_model("llama-tiny", true);
  const LayerStrategy around{.cp = 4};
  const plan::Plan plan = plan_of(apart.model(), around, around, around);
  const SimReport in_turn = simulated(plan, apart), overlapped = simulated(plan, beside);
  EXPECT_LT(overlapped.step_time_ps, in_turn.step_time_ps);
  EXPECT_LT(overlapped.stages[0].exposed_tensor_ps, in_turn.stages[0].exposed_tensor_ps / 2);
}

}  // namespace
}  // namespace orrery::sim
