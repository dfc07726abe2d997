/// Closed form against simulation without overlap: the same picoseconds.
#include <gtest/gtest.h>

#include "costmodel/closed_form/closed_form.h"
#include "sim/simulate.h"
#include "tests/property/plan/random_plan.h"
#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

CostModel cost_of(const model::ModelSpec& model, const plan::Plan& plan) {
  model::Profile p;
  p.name = "test";
  p.device = "T100";
  p.overlaps = false;
  auto made = CostModel::make(model, machines::cluster(16), p, {plan.precision, plan.sequence});
  EXPECT_TRUE(made.has_value());
  return *std::move(made);
}

TEST(ClosedFormAgainstSimulator, OneStageTakesTheSameTime) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    auto [model, plan] = plan::random_plan(seed, 4);
    for (std::size_t s = 1; s < plan.stages.size(); ++s) {
      for (const auto& run : plan.stages[s].runs) plan.stages[0].runs.push_back(run);
    }
    plan.stages.resize(1);
    plan.virtual_stages = 1;
    if (plan.schedule == plan::Schedule::kInterleaved || plan::is_v_shaped(plan.schedule))
      plan.schedule = plan::Schedule::k1F1B;
    const auto program = plan::lower(plan, model);
    if (!program) continue;
    const auto cost = cost_of(model, plan);
    const auto simulated = sim::simulate(*program, cost);
    ASSERT_TRUE(simulated.has_value()) << base::to_string(simulated.error());
    EXPECT_EQ(plan_cost(cost, plan)->step_ps, simulated->step_time_ps) << "seed " << seed;
    EXPECT_EQ(plan_cost(cost, plan)->stage_peak_bytes[0] + cost.context_bytes(),
              simulated->stages[0].peak_memory_bytes)
        << "seed " << seed;
    ++compared;
  }
  EXPECT_EQ(compared, 200);
}

struct Case {
  int stages;
  std::int64_t micro_batches;
  plan::Schedule schedule;
};
class Pipeline : public testing::TestWithParam<Case> {};

TEST_P(Pipeline, OfEqualStagesTakesTheSameTime) {
  const auto [stages, micro_batches, schedule] = GetParam();
  auto model = *model::find_model("gpt2-tiny");
  model.layers = 4 * stages;
  plan::UniformOptions o;
  o.tp = 2;
  o.pp = stages;
  o.dp = 1;
  o.micro_batch = 1;
  o.global_batch = micro_batches;
  o.sequence = 64;
  o.schedule = schedule;
  auto plan = plan::uniform_plan(model, "machine", 1, o);
  ASSERT_TRUE(plan.has_value()) << base::to_string(plan.error());
  const auto cost = cost_of(model, *plan);
  const auto simulated = sim::simulate(*plan::lower(*plan, model), cost);
  ASSERT_TRUE(simulated.has_value()) << base::to_string(simulated.error());
  EXPECT_EQ(plan_cost(cost, *plan)->step_ps, simulated->step_time_ps);
}

INSTANTIATE_TEST_SUITE_P(
    All, Pipeline,
    testing::Values(Case{1, 4, plan::Schedule::k1F1B}, Case{2, 1, plan::Schedule::k1F1B},
                    Case{2, 8, plan::Schedule::k1F1B}, Case{4, 8, plan::Schedule::k1F1B},
                    Case{2, 8, plan::Schedule::kGPipe}, Case{4, 8, plan::Schedule::kGPipe}));

}  // namespace
}  // namespace orrery::costmodel
