// A partitioned layer on the clock against the closed form of search/partition.
#include <gtest/gtest.h>

#include "base/numbers.h"
#include "costmodel/closed_form/closed_form.h"
#include "plan/lowering/lower.h"
#include "plan/partition/layer_graph.h"
#include "plan/program/memory.h"
#include "search/partition/partition_search.h"
#include "sim/simulate.h"
#include "topologies/topology.h"

namespace orrery::sim {
namespace {

using Texts = std::array<const char*, 10>;  // by plan::LayerOperator

constexpr std::int64_t kSequences = 8, kTokens = 1024;

model::ModelSpec layers_of(std::int64_t layers) {
  model::ModelSpec m = model::find_model("llama-2-7b").value();
  m.layers = layers;
  return m;
}

costmodel::CostModel cost_of(const model::ModelSpec& m) {
  // In turn: what closed forms take one after the other.
  const model::Profile profile{.name = "in turn", .overlaps = false};
  return costmodel::CostModel::make(
             m, topologies::catalog_topology("dgx-a100", 1).value(), profile,
             {.precision = model::Precision::kFloat32, .sequence = kTokens, .library = {}})
      .value();
}

std::vector<plan::Sequence> sequences_of(const Texts& texts) {
  std::vector<plan::Sequence> all;
  for (const char* text : texts) all.push_back(plan::parse_sequence(text).value());
  return all;
}

plan::Plan plan_of(const model::ModelSpec& m, const Texts& texts) {
  return {.model = m.name,
          .model_fingerprint = m.fingerprint(),
          .cluster = "dgx-a100",
          .precision = model::Precision::kFloat32,
          .sequence = kTokens,
          .global_batch = kSequences,
          .stages = {{.runs = {{.count = as_int(m.layers),
                                .strategy = {.dp = 8},
                                .partition = sequences_of(texts)}}}},
          .vocabulary = {.dp = 8}};
}

/// Forward and backward of so many layers, what updates their state aside.
std::int64_t simulated_ps(std::int64_t layers, const Texts& texts, plan::Recompute recompute) {
  const model::ModelSpec m = layers_of(layers);
  plan::Plan plan = plan_of(m, texts);
  plan.stages.front().runs.front().strategy.recompute = recompute;
  const auto program = plan::lower(plan, m);
  EXPECT_TRUE(program) << base::to_string(program.error());
  const SimReport report = simulate(*program, cost_of(m)).value();
  return report.step_time_ps - report.stages.front().parts[as_index(TimePart::kOptimizer)];
}

double ratio(const Texts& texts, plan::Recompute recompute = plan::Recompute::kNone) {
  const std::int64_t layer_ps =
      simulated_ps(3, texts, recompute) - simulated_ps(2, texts, recompute);
  const costmodel::CostModel cost = cost_of(layers_of(2));
  const auto search = search::PartitionSearch::make(
      cost, {.bits = 3,
             .sequences = kSequences,
             .tokens = kTokens,
             .skews = 1,
             .step = {.recomputes = recompute == plan::Recompute::kFull}});
  const auto given = search.value().given(sequences_of(texts));
  EXPECT_TRUE(given.has_value());
  return real(layer_ps) / real(given->time_ps);
}

const Texts kWhole{"B,B,B", "B,B,B", "B,B,B", "B,B,B", "B,B,B",
                   "B,B,B", "B,B,B", "B,B,B", "B,B,B", "B,B,B"};
const Texts kTensor{"R,R,R", "K,K,K", "H,H,H", "H,H,H", "H,H,H",
                    "N,N,N", "R,R,R", "K,K,K", "K,K,K", "N,N,N"};
const Texts kPrimitives{"B,M,M",  "K,P2x2", "B,H,H",  "B,H,H", "B,H,H",
                        "N,P2x2", "B,M,M",  "K,P2x2", "B,M,K", "N,P2x2"};

const Texts kFused{"M,M,M", "K,K,K", "H,H,H", "-",     "H,H,H",
                   "N,N,N", "M,M,M", "K,K,K", "K,K,K", "N,N,N"};

// Alike but for what docs/models/partition.md names.
TEST(PartitionedLayer, TakesAboutAsLongAsItsClosedForm) {
  EXPECT_NEAR(ratio(kWhole), 1, 0.01);
  EXPECT_NEAR(ratio(kTensor), 1, 0.01);
  EXPECT_NEAR(ratio(kPrimitives), 1, 0.02);
}

// The last product and residual do not run again; the closed form counts them.
TEST(PartitionedLayer, TakesAboutAsLongAsItsClosedFormWhereItRunsAgain) {
  for (const Texts& texts : {kWhole, kTensor, kPrimitives})
    EXPECT_NEAR(ratio(texts, plan::Recompute::kFull), 0.95, 0.03) << texts[1];
}

// Megatron-LM's tensor parallelism by id bits has the conventional layer's operations.
TEST(PartitionedPlan, OfMegatronsSplitsTakesAsLongAsTheConventionalOne) {
  const model::ModelSpec m = layers_of(8);
  const costmodel::CostModel cost = cost_of(m);
  const auto step_ps = [&](const plan::Plan& plan) {
    return real(simulate(plan::lower(plan, m).value(), cost).value().step_time_ps);
  };
  const Texts whole{"R,R,R", "K,K,K", "H,H,H", "-",     "H,H,H",
                    "N,N,N", "R,R,R", "K,K,K", "K,K,K", "N,N,N"};
  plan::Plan conventional = plan_of(m, whole);
  conventional.vocabulary = {.tp = 8};
  plan::Plan partitioned = conventional;
  conventional.stages.front().runs = {{.count = 8, .strategy = {.tp = 8}}};
  EXPECT_NEAR(step_ps(partitioned) / step_ps(conventional), 1, 0.01);
}

// Of whole plans, moves beside products or in turn; memory to the byte.
TEST(PartitionedPlan, TakesAboutAsLongAsItsClosedForm) {
  const model::ModelSpec m = layers_of(8);
  for (const bool overlaps : {false, true}) {
    const model::Profile profile{.name = "profile", .overlaps = overlaps};
    const auto cost = costmodel::CostModel::make(
        m, topologies::catalog_topology("dgx-a100", 1).value(), profile,
        {.precision = model::Precision::kFloat32, .sequence = kTokens, .library = {}});
    for (const Texts& texts : {kWhole, kTensor, kPrimitives, kFused}) {
      for (int zero = 0; zero <= 3; ++zero) {
        plan::Plan plan = plan_of(m, texts);
        plan::LayerStrategy& s = plan.stages.front().runs.front().strategy;
        s.zero = zero;
        if (zero == 2) s.grad_reduce = plan::GradReduce::kMicroBatch;
        if (zero >= 2) s.recompute = plan::Recompute::kFull;
        const plan::Program program = plan::lower(plan, m).value();
        const SimReport report = simulate(program, *cost).value();
        const costmodel::PlanCost form = costmodel::plan_cost(*cost, plan).value();
        EXPECT_NEAR(real(form.step_ps) / real(report.step_time_ps), 1, 0.02)
            << texts[1] << (overlaps ? " overlapped" : " in turn") << " zero " << zero;
        EXPECT_EQ(form.stage_peak_bytes.front(),
                  plan::static_memory(program, program.classes.front()).peak_bytes);
      }
    }
  }
}

}  // namespace
}  // namespace orrery::sim
