// The checker accepts every Program that lowering emits.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>

#include "tests/property/plan/program_laws.h"

namespace orrery::plan {
namespace {

TEST(CheckProperty, EveryLoweredProgramIsCorrect) {
  ASSERT_TRUE(
      rc::check("zero faults", [](std::uint64_t seed) { expect_no_faults(random_plan(seed)); }));
}

/// The random plan in any precision, formats included.
RandomPlan quantised(RandomPlan r, std::uint64_t seed) {
  r.plan.precision = static_cast<model::Precision>(seed % (as_index(model::kLastPrecision) + 1));
  return r;
}

TEST(CheckProperty, EveryLoweredProgramIsCorrectInEveryPrecision) {
  ASSERT_TRUE(rc::check("zero faults", [](std::uint64_t seed, std::uint64_t other) {
    expect_no_faults(quantised(random_plan(seed), other));
    expect_no_faults(quantised(random_encoder_plan(seed), other));
  }));
}

TEST(CheckProperty, EveryLoweredProgramOfAnEncoderIsCorrect) {
  ASSERT_TRUE(rc::check("zero faults",
                        [](std::uint64_t seed) { expect_no_faults(random_encoder_plan(seed)); }));
}

TEST(CheckProperty, EveryLoweredProgramOfAdaptersIsCorrect) {
  ASSERT_TRUE(rc::check("zero faults", [](std::uint64_t seed, std::uint64_t other) {
    expect_no_faults(random_adapter_plan(seed));
    expect_no_faults(quantised(random_adapter_plan(seed), other));
  }));
}

TEST(CheckProperty, NoOperationCanBeLeftOutOrRepeated) {
  ASSERT_TRUE(rc::check("caught", [](std::uint64_t seed) {
    expect_operation_matters(random_plan(seed), is_idempotent);
  }));
}

TEST(CheckProperty, LoweringIsDeterministic) {
  ASSERT_TRUE(rc::check("same fingerprint", [](std::uint64_t seed) {
    const RandomPlan r = random_plan(seed);
    const auto a = lower(r.plan, r.model), b = lower(r.plan, r.model);
    RC_ASSERT(a.has_value() && b.has_value());
    RC_ASSERT(a->fingerprint() == b->fingerprint());
  }));
}

}  // namespace
}  // namespace orrery::plan
