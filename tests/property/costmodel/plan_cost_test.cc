/// Closed forms against lowered Programs: memory byte for byte, time of one stage picosecond for
/// picosecond.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/rng.h"
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

RC_GTEST_PROP(ClosedForm, StagePeakOfLongRunsEqualsTheProgramsByteForByte,
              (std::uint64_t seed, bool experts)) {
  auto [model, plan] = experts ? plan::random_expert_plan(seed, 4) : plan::random_plan(seed, 4);
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

RC_GTEST_PROP(ClosedForm, OneStageWithoutOverlapTakesTheSumOfItsOperations,
              (std::uint64_t seed, bool experts)) {
  auto [model, plan] = experts ? plan::random_expert_plan(seed, 4) : plan::random_plan(seed, 4);
  join_stages(plan);
  plan.virtual_stages = 1;
  if (plan.schedule == plan::Schedule::kInterleaved) plan.schedule = plan::Schedule::k1F1B;
  const auto program = plan::lower(plan, model);
  RC_PRE(program.has_value());
  expect_sum_of_operations(model, plan, *program);
}

}  // namespace
}  // namespace orrery::costmodel
