// What holds for every Program holds for those of mixtures of experts.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>

#include "tests/property/plan/program_laws.h"

namespace orrery::plan {
namespace {

TEST(ExpertPlans, EveryLoweredProgramIsCorrect) {
  ASSERT_TRUE(rc::check("zero faults",
                        [](std::uint64_t seed) { expect_no_faults(random_expert_plan(seed)); }));
}

TEST(ExpertPlans, NoOperationCanBeLeftOutOrRepeated) {
  ASSERT_TRUE(rc::check("caught", [](std::uint64_t seed) {
    expect_operation_matters(random_expert_plan(seed), is_idempotent);
  }));
}

// Experts travel, tokens come back: a mixture without expert parallelism has the same parameters on
// all its ranks together.
TEST(ExpertPlans, RanksTogetherHoldEveryParameter) {
  ASSERT_TRUE(rc::check("each parameter once per replica", [](std::uint64_t seed) {
    const RandomPlan r = random_expert_plan(seed);
    const auto program = lower(r.plan, r.model);
    RC_ASSERT(program.has_value());
    for (std::uint32_t u = 0; u < program->units.size(); ++u) {
      const ParameterUnit& unit = program->units[UnitId(u)];
      for (const Parameter& p : unit.parameters) {
        if (!p.name.starts_with("blocks.")) continue;
        std::int64_t global = 1, local = 1;
        for (const std::int64_t n : p.shape) global *= n;
        for (const std::int64_t n : p.local_shape) local *= n;
        const std::int64_t owners =
            (p.shard_dim >= 0 ? unit.strategy.tp : 1) * (p.expert_dim >= 0 ? unit.strategy.ep : 1);
        RC_ASSERT(local * owners == global);
      }
    }
  }));
}

}  // namespace
}  // namespace orrery::plan
