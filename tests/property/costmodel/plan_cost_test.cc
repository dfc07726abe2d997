/// Closed forms against lowered Programs: memory byte for byte, time of one stage picosecond for
/// picosecond.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/property/costmodel/closed_form_laws.h"
#include "tests/property/plan/random_plan.h"

namespace orrery::costmodel {
namespace {

RC_GTEST_PROP(ClosedForm, StagePeakEqualsTheProgramsStaticPeakByteForByte, (std::uint64_t seed)) {
  const auto [model, plan] = plan::random_plan(seed, 4);
  const auto program = plan::lower(plan, model);
  RC_PRE(program.has_value());
  expect_static_peaks(model, plan, *program);
}

RC_GTEST_PROP(ClosedForm, StagePeakOfExpertsEqualsTheProgramsByteForByte, (std::uint64_t seed)) {
  const auto [model, plan] = plan::random_expert_plan(seed, 4);
  const auto program = plan::lower(plan, model);
  RC_ASSERT(program.has_value());
  expect_static_peaks(model, plan, *program);
}

RC_GTEST_PROP(ClosedForm, StagePeakOfAnEncoderEqualsTheProgramsByteForByte, (std::uint64_t seed)) {
  const auto [model, plan] = plan::random_encoder_plan(seed, 4);
  const auto program = plan::lower(plan, model);
  RC_ASSERT(program.has_value());
  expect_static_peaks(model, plan, *program);
}

RC_GTEST_PROP(ClosedForm, StagePeakOfAdaptersEqualsTheProgramsByteForByte, (std::uint64_t seed)) {
  const auto [model, plan] = plan::random_adapter_plan(seed, 4);
  const auto program = plan::lower(plan, model);
  RC_PRE(program.has_value());
  expect_static_peaks(model, plan, *program);
}

RC_GTEST_PROP(ClosedForm, ASmallerRankNeverNeedsMoreMemoryOrTime, (std::uint64_t seed)) {
  auto [model, plan] = plan::random_adapter_plan(seed, 4);
  std::vector<std::int64_t> least_bytes;
  std::int64_t least_ps = 0;
  for (const std::int64_t rank : {1, 2, 7, 32}) {
    model.adapter.rank = plan.adapter.rank = rank;
    plan.model_fingerprint = model.fingerprint();
    const auto priced = plan_cost(cost_of(model, plan), plan);
    RC_PRE(priced.has_value());
    RC_ASSERT(priced->step_ps >= least_ps);
    for (std::size_t s = 0; s < least_bytes.size(); ++s)
      RC_ASSERT(priced->stage_peak_bytes[s] >= least_bytes[s]);
    least_ps = priced->step_ps;
    least_bytes = priced->stage_peak_bytes;
  }
}

RC_GTEST_PROP(ClosedForm, StagePeakOfLongRunsEqualsTheProgramsByteForByte,
              (std::uint64_t seed, bool experts)) {
  expect_static_peaks_of_long_runs(
      experts ? plan::random_expert_plan(seed, 4) : plan::random_plan(seed, 4), seed);
}

RC_GTEST_PROP(ClosedForm, OneStageWithoutOverlapTakesTheSumOfItsOperations,
              (std::uint64_t seed, bool experts)) {
  expect_one_stage_is_a_sum(experts ? plan::random_expert_plan(seed, 4)
                                    : plan::random_plan(seed, 4));
}

RC_GTEST_PROP(ClosedForm, OneStageOfAdaptersWithoutOverlapTakesTheSumOfItsOperations,
              (std::uint64_t seed)) {
  expect_one_stage_is_a_sum(plan::random_adapter_plan(seed, 4));
}

}  // namespace
}  // namespace orrery::costmodel
