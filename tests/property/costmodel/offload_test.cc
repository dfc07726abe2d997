/// Closed forms of plans whose activations go to the host, against their lowered Programs.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/property/costmodel/closed_form_laws.h"

namespace orrery::costmodel {
namespace {

plan::RandomPlan drawn(std::uint64_t seed, int kind) {
  if (kind == 0) return plan::with_offload(plan::random_plan(seed, 4), seed);
  if (kind == 1) return plan::with_offload(plan::random_expert_plan(seed, 4), seed);
  return plan::with_offload(plan::random_adapter_plan(seed, 4), seed);
}

RC_GTEST_PROP(Offload, StagePeakEqualsTheProgramsStaticPeakByteForByte, (std::uint64_t seed)) {
  expect_static_peaks_of_long_runs(drawn(seed, *rc::gen::inRange(0, 3)), seed);
}

RC_GTEST_PROP(Offload, OneStageWithoutOverlapTakesTheSumOfItsOperations, (std::uint64_t seed)) {
  plan::RandomPlan random = drawn(seed, *rc::gen::inRange(0, 3));
  if (plan::splits_backward(random.plan.schedule)) random.plan.schedule = plan::Schedule::k1F1B;
  expect_one_stage_is_a_sum(std::move(random));
}

}  // namespace
}  // namespace orrery::costmodel
