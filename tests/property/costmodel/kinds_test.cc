/// Closed forms against lowered Programs of models with blocks of several kinds.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/property/costmodel/closed_form_laws.h"
#include "tests/property/plan/random_kinds.h"

namespace orrery::costmodel {
namespace {

RC_GTEST_PROP(KindsClosedForm, StagePeakEqualsTheProgramsStaticPeakByteForByte,
              (std::uint64_t seed)) {
  const auto [model, plan] = plan::random_kinds_plan(seed, 4);
  const auto program = plan::lower(plan, model);
  RC_ASSERT(program.has_value());
  expect_static_peaks(model, plan, *program);
}

RC_GTEST_PROP(KindsClosedForm, OneStageWithoutOverlapTakesTheSumOfItsOperations,
              (std::uint64_t seed)) {
  auto [model, plan] = plan::random_kinds_plan(seed, 4);
  join_stages(plan);
  const auto program = plan::lower(plan, model);
  RC_ASSERT(program.has_value());
  expect_sum_of_operations(model, plan, *program);
}

}  // namespace
}  // namespace orrery::costmodel
