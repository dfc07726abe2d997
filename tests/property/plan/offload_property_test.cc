// The checker accepts every Program whose activations go to the host, and misses no copy.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tests/property/plan/program_laws.h"
#include "tests/property/plan/random_kinds.h"

namespace orrery::plan {
namespace {

TEST(OffloadProperty, EveryLoweredProgramIsCorrect) {
  ASSERT_TRUE(rc::check("zero faults", [](std::uint64_t seed) {
    expect_no_faults(with_offload(random_plan(seed), seed));
    expect_no_faults(with_offload(random_expert_plan(seed), seed));
    expect_no_faults(with_offload(random_encoder_plan(seed), seed));
    expect_no_faults(with_offload(random_kinds_plan(seed), seed));
    expect_no_faults(with_offload(random_adapter_plan(seed), seed));
  }));
}

TEST(OffloadProperty, NoOperationCanBeLeftOutOrRepeated) {
  ASSERT_TRUE(rc::check("caught", [](std::uint64_t seed) {
    expect_operation_matters(with_offload(random_plan(seed), seed), is_idempotent);
  }));
}

}  // namespace
}  // namespace orrery::plan
