/// Models with blocks of several kinds: the simulated Program against the closed form.

#include <gtest/gtest.h>

#include "costmodel/closed_form/closed_form.h"
#include "model/spec.h"
#include "plan/check/check.h"
#include "plan/lowering/lower.h"
#include "sim/simulate.h"

namespace orrery::sim {
namespace {

struct Answers {
  costmodel::PlanCost closed;
  SimReport simulated;
  std::int64_t context_bytes = 0;
};
Answers both(const std::string& name, plan::UniformOptions options, bool overlaps) {
  const auto model = model::find_model(name).value();
  model::Profile profile;
  profile.name = "flags";
  profile.overlaps = overlaps;
  profile.context_bytes = 1 << 20;
  options.sequence = model.max_positions;
  const auto cost =
      costmodel::CostModel::make(model, topologies::catalog_topology("dgx-a100").value(), profile,
                                 {.precision = options.precision, .sequence = options.sequence})
          .value();
  const auto plan = plan::uniform_plan(model, "dgx-a100", 1, options);
  EXPECT_TRUE(plan.has_value()) << name << (plan ? "" : base::to_string(plan.error()));
  const plan::Program program = plan::lower(*plan, model).value();
  EXPECT_TRUE(plan::check(program).empty()) << name;
  return {costmodel::plan_cost(cost, *plan).value(), simulate(program, cost).value(),
          cost.context_bytes()};
}

const std::vector<std::string> kModels{"t5-small", "swin-base", "vit-base", "deepseek-moe-16b"};

TEST(KindsClosedForm, EqualsTheSimulationOfOneStageWithoutOverlap) {
  for (const std::string& model : kModels) {
    for (const plan::UniformOptions& o : std::vector<plan::UniformOptions>{
             {.micro_batch = 2, .global_batch = 4},
             {.tp = 2, .dp = 4, .zero = 3, .recompute = plan::Recompute::kFull, .global_batch = 8},
             {.tp = 4,
             .dp = 2,
             .zero = 1,
             .recompute = plan::Recompute::kSelective,
             .global_batch = 4}}) {
      const Answers a = both(model, o, false);
      EXPECT_EQ(a.simulated.step_time_ps, a.closed.step_ps) << model << " tp" << o.tp;
      EXPECT_EQ(a.simulated.stages[0].peak_memory_bytes,
                a.closed.stage_peak_bytes[0] + a.context_bytes)
          << model << " tp" << o.tp;
    }
  }
}

// Stages of unequal blocks: the formula's cycle is the slowest stage's, and what others wait for
// can differ by a few per cent.
TEST(KindsClosedForm, IsNearTheSimulationOfPipelines) {
  for (const std::string& model : kModels) {
    if (model == "vit-base") continue;  // equal blocks
    for (const auto schedule : {plan::Schedule::kGPipe, plan::Schedule::k1F1B}) {
      for (const bool overlaps : {false, true}) {
        const Answers a = both(
            model, {.tp = 2, .pp = 4, .schedule = schedule, .micro_batch = 2, .global_batch = 16},
            overlaps);
        const double ratio =
            static_cast<double>(a.simulated.step_time_ps) / static_cast<double>(a.closed.step_ps);
        EXPECT_NEAR(ratio, 1.0, 0.05)
            << model << " " << plan::to_string(schedule) << (overlaps ? " overlap" : "");
        for (std::size_t s = 0; s < a.closed.stage_peak_bytes.size(); ++s)
          EXPECT_EQ(a.simulated.stages[s].peak_memory_bytes,
                    a.closed.stage_peak_bytes[s] + a.context_bytes)
              << model << " stage " << s;
      }
    }
  }
}

}  // namespace
}  // namespace orrery::sim
