/// Closed forms against lowered Programs: memory byte for byte, time of one stage picosecond for picosecond.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "costmodel/closed_form.h"
#include "plan/expand.h"
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
  RC_ASSERT(made.has_value());
  return *std::move(made);
}

RC_GTEST_PROP(ClosedForm, StagePeakEqualsTheProgramsStaticPeakByteForByte, (std::uint64_t seed)) {
  const auto [model, plan] = plan::random_plan(seed, 4);
  const auto program = plan::lower(plan, model);
  RC_PRE(program.has_value());
  const auto priced = plan_cost(cost_of(model, plan), plan);
  RC_ASSERT(priced.has_value());
  RC_ASSERT(priced->stage_peak_bytes.size() == program->classes.size());
  for (std::size_t s = 0; s < program->classes.size(); ++s) {
    RC_ASSERT(priced->stage_peak_bytes[s] == plan::static_memory(*program, program->classes[s]).peak_bytes);
  }
}

RC_GTEST_PROP(ClosedForm, StagePeakOfExpertsEqualsTheProgramsByteForByte, (std::uint64_t seed)) {
  const auto [model, plan] = plan::random_expert_plan(seed, 4);
  const auto program = plan::lower(plan, model);
  RC_ASSERT(program.has_value());
  const auto priced = plan_cost(cost_of(model, plan), plan);
  RC_ASSERT(priced.has_value());
  for (std::size_t s = 0; s < program->classes.size(); ++s) {
    RC_ASSERT(priced->stage_peak_bytes[s] == plan::static_memory(*program, program->classes[s]).peak_bytes);
  }
}

RC_GTEST_PROP(ClosedForm, StagePeakOfAnEncoderEqualsTheProgramsByteForByte, (std::uint64_t seed)) {
  const auto [model, plan] = plan::random_encoder_plan(seed, 4);
  const auto program = plan::lower(plan, model);
  RC_ASSERT(program.has_value());
  const auto priced = plan_cost(cost_of(model, plan), plan);
  RC_ASSERT(priced.has_value());
  for (std::size_t s = 0; s < program->classes.size(); ++s) {
    RC_ASSERT(priced->stage_peak_bytes[s] == plan::static_memory(*program, program->classes[s]).peak_bytes);
  }
}

RC_GTEST_PROP(ClosedForm, OneStageWithoutOverlapTakesTheSumOfItsOperations, (std::uint64_t seed, bool experts)) {
  auto [model, plan] = experts ? plan::random_expert_plan(seed, 4) : plan::random_plan(seed, 4);
  for (std::size_t s = 1; s < plan.stages.size(); ++s) {
    for (const auto& run : plan.stages[s].runs) plan.stages[0].runs.push_back(run);
  }
  plan.stages.resize(1);
  plan.virtual_stages = 1;
  if (plan.schedule == plan::Schedule::kInterleaved) plan.schedule = plan::Schedule::k1F1B;
  const auto program = plan::lower(plan, model);
  RC_PRE(program.has_value());
  const auto cost = cost_of(model, plan);
  std::int64_t sum = 0;
  plan::for_each_op(*program, program->classes[0],
                    [&](const plan::OpInstance& o) { sum += cost.op_ps(*program, *o.op, 0, plan.world_size()); });
  const auto priced = plan_cost(cost, plan);
  RC_ASSERT(priced.has_value());
  RC_ASSERT(priced->step_ps == sum);
}

}  // namespace
}  // namespace orrery::costmodel
