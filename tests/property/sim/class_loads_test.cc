// A step whose transfers name the links of the first block of each class and level equals the step
// whose transfers name all links, to the picosecond: on one switch, leaves, rails and fat trees.
#include "sim/network/class_loads.h"

#include <gtest/gtest.h>

#include "plan/lowering/lower.h"
#include "sim/simulate.h"
#include "tests/property/plan/random_plan.h"
#include "tests/unit/costmodel/machines.h"
#include "tests/unit/costmodel/tunings.h"

namespace orrery::sim {
namespace {

TEST(ClassLoads, OneHostForEachClassSaysWhatAllHostsDo) {
  constexpr std::uint64_t kPlans = 400;
  int compared = 0, folded = 0, several_hosts_a_class = 0;
  for (std::uint64_t seed = 0; seed < kPlans; ++seed) {
    const plan::RandomPlan random = plan::PlanDraw(seed, seed % 4 == 0).draw(32);
    const auto program = plan::lower(random.plan, random.model);
    if (!program) continue;
    const int per_host = 1 << seed % 4;
    if (program->world_size % per_host != 0) continue;
    const int hosts = program->world_size / per_host, kind = static_cast<int>(seed / 4 % 5);
    const auto cost = costmodel::CostModel::make(
        random.model,
        kind == 4 ? costmodel::machines::cluster(per_host, hosts)
                  : costmodel::machines::cluster(per_host, hosts, 100'000'000'000, 2,
                                                 costmodel::machines::fabric(kind)),
        std::nullopt,
        {.precision = program->precision,
         .sequence = program->sequence,
         .library = seed % 3 == 0 ? nullptr : costmodel::tunings::library()});
    ASSERT_TRUE(cost.has_value()) << base::to_string(cost.error());
    const auto one = simulate(*program, *cost),
               all = simulate(*program, *cost, {.timeline = false, .picture = true});
    ASSERT_TRUE(one.has_value() && all.has_value()) << "seed " << seed;
    ASSERT_EQ(one->step_time_ps, all->step_time_ps) << "seed " << seed;
    ASSERT_EQ(one->fingerprint, all->fingerprint) << "seed " << seed;
    ASSERT_EQ(one->events, all->events) << "seed " << seed;
    ++compared;
    if (!ClassLoads(*program, *cost, true).folded()) continue;
    ++folded;
    several_hosts_a_class += program->classes.front().count > per_host ? 1 : 0;
  }
  EXPECT_GE(compared, 200);
  EXPECT_GE(folded, 80);
  EXPECT_GE(several_hosts_a_class, 60);
}

TEST(ClassLoads, AClassOfPartsOfHostsIsNotFolded) {
  const plan::RandomPlan random = plan::PlanDraw(1).draw(2);
  const auto program = plan::lower(random.plan, random.model).value();
  const auto cost =
      costmodel::CostModel::make(random.model, costmodel::machines::cluster(program.world_size * 2),
                                 std::nullopt,
                                 {.precision = program.precision, .sequence = program.sequence})
          .value();
  EXPECT_FALSE(ClassLoads(program, cost, true).folded());
}

}  // namespace
}  // namespace orrery::sim
