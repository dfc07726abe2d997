/// Closed forms of plans whose activations go to the host, against their lowered Programs.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/property/costmodel/closed_form_laws.h"
#include "tests/property/plan/random_plan.h"

namespace orrery::costmodel {
namespace {

plan::RandomPlan drawn(std::uint64_t seed, int kind) {
  if (kind == 0) return plan::with_offload(plan::random_plan(seed, 4), seed);
  if (kind == 1) return plan::with_offload(plan::random_expert_plan(seed, 4), seed);
  return plan::with_offload(plan::random_adapter_plan(seed, 4), seed);
}

RC_GTEST_PROP(Offload, StagePeakEqualsTheProgramsStaticPeakByteForByte, (std::uint64_t seed)) {
  const int kind = *rc::gen::inRange(0, 3), more = *rc::gen::inRange(0, 9);
  auto [model, plan] = drawn(seed, kind);
  plan.prefetch_depth = *rc::gen::inRange(0, 5);
  for (plan::Stage& stage : plan.stages) {
    for (plan::LayerRun& run : stage.runs) {
      run.count += more;
      model.layers += more;
    }
  }
  plan.model_fingerprint = model.fingerprint();
  const auto program = plan::lower(plan, model);
  RC_PRE(program.has_value());
  expect_static_peaks(model, plan, *program);
}

RC_GTEST_PROP(Offload, OneStageWithoutOverlapTakesTheSumOfItsOperations, (std::uint64_t seed)) {
  auto [model, plan] = drawn(seed, *rc::gen::inRange(0, 3));
  join_stages(plan);
  plan.virtual_stages = 1;
  if (plan.schedule != plan::Schedule::kGPipe) plan.schedule = plan::Schedule::k1F1B;
  const auto program = plan::lower(plan, model);
  RC_PRE(program.has_value());
  expect_sum_of_operations(model, plan, *program);
}

}  // namespace
}  // namespace orrery::costmodel
