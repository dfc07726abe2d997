#pragma once
/// What holds between the closed form of a plan and its lowered Program, whatever the family of its
/// model.
#include <rapidcheck.h>

#include "base/json.h"
#include "base/rng.h"
#include "costmodel/closed_form/closed_form.h"
#include "plan/lowering/lower.h"
#include "plan/program/expand.h"
#include "plan/program/memory.h"
#include "tests/property/plan/random_plan.h"
#include "tests/support/operation_time.h"
#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {

/// Sixteen devices on which communication never runs beside computation.
inline CostModel cost_of(const model::ModelSpec& model, const plan::Plan& plan) {
  model::Profile p;
  p.name = "test";
  p.device = "T100";
  p.overlaps = false;
  auto made =
      CostModel::make(model, machines::with_processor(16), p, {plan.precision, plan.sequence});
  RC_ASSERT(made.has_value());
  return *std::move(made);
}

/// Byte for byte.
inline void expect_static_peaks(const model::ModelSpec& model, const plan::Plan& plan,
                                const plan::Program& program) {
  const auto priced = plan_cost(cost_of(model, plan), plan);
  RC_ASSERT(priced.has_value());
  RC_ASSERT(priced->stage_peak_bytes.size() == program.classes.size());
  for (std::size_t s = 0; s < program.classes.size(); ++s) {
    const std::int64_t stated = plan::static_memory(program, program.classes[s]).peak_bytes;
    if (priced->stage_peak_bytes[s] != stated)
      RC_FAIL(fmt::format("stage {}: {} by closed form, {} of the Program; {}", s,
                          priced->stage_peak_bytes[s], stated, base::to_text(plan::to_json(plan))));
  }
}

/// The same with up to 15 layers more in each run, and any prefetch depth.
inline void expect_static_peaks_of_long_runs(plan::RandomPlan random, std::uint64_t seed) {
  auto& [model, plan] = random;
  base::Rng rng(seed);
  plan.prefetch_depth = static_cast<int>(rng.below(5));
  for (plan::Stage& stage : plan.stages) {
    for (plan::LayerRun& run : stage.runs) {
      const int more = static_cast<int>(rng.below(16));
      run.count += more;
      model.layers += more;
    }
  }
  plan.model_fingerprint = model.fingerprint();
  const auto program = plan::lower(plan, model);
  RC_PRE(program.has_value());
  expect_static_peaks(model, plan, *program);
}

/// The layers of all stages in one.
inline void join_stages(plan::Plan& plan) {
  for (std::size_t s = 1; s < plan.stages.size(); ++s) {
    for (const auto& run : plan.stages[s].runs) plan.stages[0].runs.push_back(run);
  }
  plan.stages.resize(1);
}

/// Of one stage: picosecond for picosecond.
inline void expect_sum_of_operations(const model::ModelSpec& model, const plan::Plan& plan,
                                     const plan::Program& program) {
  const auto cost = cost_of(model, plan);
  std::int64_t sum = 0;
  plan::for_each_op(program, program.classes[0], [&](const plan::OpInstance& o) {
    sum += tests::op_ps(cost, program, *o.op, 0, plan.world_size());
  });
  const auto priced = plan_cost(cost, plan);
  RC_ASSERT(priced.has_value());
  RC_ASSERT(priced->step_ps == sum);
}

inline void expect_one_stage_is_a_sum(plan::RandomPlan random) {
  auto& [model, plan] = random;
  join_stages(plan);
  plan.virtual_stages = 1;
  if (plan.schedule == plan::Schedule::kInterleaved) plan.schedule = plan::Schedule::k1F1B;
  const auto program = plan::lower(plan, model);
  RC_PRE(program.has_value());
  expect_sum_of_operations(model, plan, *program);
}

}  // namespace orrery::costmodel
