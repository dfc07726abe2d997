// find_plan against the enumeration of every plan of a tiny space, priced by costmodel::plan_cost:
// all partitions into stages, all strategies of every layer in any order. What is called optimal is
// the cheapest plan that fits, to the picosecond; a bound is never above it.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "base/rng.h"
#include "costmodel/closed_form/layer_costs.h"
#include "search/loop/planner.h"
#include "search/programs/layer_program.h"
#include "search/proof/multiplier_bound.h"
#include "tests/oracle/search/every_plan.h"
#include "tests/unit/search/checked_answer.h"
#include "tests/unit/search/tiny_fixture.h"

namespace orrery::search {
namespace {

/// What the checker makes of the certificate's multipliers, and of any others, never exceeds the
/// cheapest plan that fits.
void multipliers_are_valid(const costmodel::CostModel& cost, const PlanAnswer& answer,
                           std::int64_t limit, std::int64_t least_ps, std::uint64_t seed) {
  costmodel::LayerCosts costs(cost, answer.certificate.objective);
  SpaceProof proof = answer.certificate.proofs.at(0);
  base::Rng rng(seed);
  for (int mutant = 0; mutant < 3; ++mutant) {
    const SpaceBound bound = space_bound(costs, proof, answer.candidates.front().plan, limit);
    EXPECT_FALSE(bound.malformed);
    EXPECT_LE(bound.bound_ps, least_ps) << "limit " << limit << ", mutant " << mutant;
    for (ProblemMultipliers& p : proof.problems) {
      for (auto& prices : p.prices) {
        for (std::int64_t& price : prices)
          price = price / 8 * static_cast<std::int64_t>(rng.below(17));
      }
      std::swap(p.weights.front(), p.weights.back());
    }
  }
}

void compare(int devices, int layers, std::int64_t global_batch, Space space, std::size_t plans,
             costmodel::Objective objective = costmodel::Objective::kTime) {
  space.gpipe = false;
  const costmodel::CostModel cost = tiny_cost(devices, layers);
  const EveryPlan every(cost, space, global_batch, 0, objective);
  ASSERT_EQ(every.all.size(), plans);
  const auto [smallest, largest] = std::ranges::minmax(every.all, {}, &Priced::peak_bytes);
  int equal = 0, feasible = 0, optimal = 0;
  for (int k = -1; k <= 32; ++k) {
    const std::int64_t limit =
        smallest.peak_bytes + (largest.peak_bytes - smallest.peak_bytes) * k / 32;
    PlanRequest request;
    request.memory_bytes = limit + cost.context_bytes();
    request.global_batch = global_batch;
    request.space = space;
    request.objective = objective;
    request.top = 3;
    const auto answer = find_plan(cost, request);
    ASSERT_TRUE(answer.has_value()) << base::to_string(answer.error());
    const std::int64_t expected = every.best(limit);
    if (expected < 0) {
      EXPECT_EQ(answer->status, Status::kInfeasible);
      EXPECT_EQ(answer->shortfall_bytes, smallest.peak_bytes - limit);
      ASSERT_FALSE(answer->relaxations.empty());
      continue;
    }
    ASSERT_NE(answer->status, Status::kInfeasible)
        << "limit " << limit << " of " << smallest.peak_bytes << ".." << largest.peak_bytes;
    EXPECT_LE(answer->certificate.bound_ps, expected) << "limit " << limit;
    EXPECT_GE(answer->certificate.cost_ps, expected) << "limit " << limit;
    EXPECT_EQ(answer->status == Status::kOptimal, answer->certificate.gap == 0);
    if (answer->status == Status::kOptimal) {
      EXPECT_EQ(answer->certificate.cost_ps, expected)
          << "limit " << limit << ", " << every.all.size() << " plans";
    }
    ++feasible;
    optimal += answer->status == Status::kOptimal ? 1 : 0;
    equal += answer->certificate.cost_ps == expected ? 1 : 0;
    for (const std::int64_t peak : answer->certificate.stage_peak_bytes)
      EXPECT_LE(peak, request.memory_bytes);
    EXPECT_EQ(checkers_fault(cost, *answer), "") << "limit " << limit;
    const std::int64_t multiplied = every.best(limit, true);
    if (!answer->candidates.empty()) {
      multipliers_are_valid(cost, *answer, limit, multiplied < 0 ? kForbidden : multiplied,
                            static_cast<std::uint64_t>(k + 1));
    }
  }
  std::cout << "optimal " << optimal << ", the true optimum " << equal << ", of " << feasible
            << " limits, " << every.all.size() << " plans\n";
  EXPECT_EQ(feasible, 33) << "of 34 limits, the first below any plan";
  EXPECT_GE(10 * equal, 9 * feasible) << equal << " of " << feasible;
  EXPECT_GE(10 * optimal, 9 * feasible) << optimal << " of " << feasible;
}

/// Galvatron's dimensions with ZeRO-2 and Megatron sequence parallelism.
Space classic() {
  Space space;
  space.zero1 = space.recompute_selective = space.ring = space.ulysses = space.hybrid =
      space.strided = false;
  space.interleaved = space.zero_bubble = space.idle = false;
  return space;
}

TEST(WholePlanOracle, TwoDevicesTwoLayers) { compare(2, 2, 2, classic(), 424); }
TEST(WholePlanOracle, TwoDevicesTwoLayersFourSequences) { compare(2, 2, 4, classic(), 1212); }
TEST(WholePlanOracle, TwoDevicesTwoLayersInTheWholeSpace) {
  Space space;
  space.ring = space.ulysses = space.strided = true;
  compare(2, 2, 2, space, 10'629);
}

TEST(WholePlanOracle, TwoDevicesTwoLayersByOperatorAndInSlices) {
  Space space = classic();
  space.zero2 = space.sequence_parallel = space.recompute_full = false;
  space.operators = space.slices = true;
  compare(2, 2, 4, space, 3943);
}

TEST(WholePlanOracle, TwoDevicesThreeLayersAreUneven) {
  Space space = classic();
  space.sequence_parallel = false;
  space.zero2 = false;
  compare(2, 3, 2, space, 688);
}

TEST(WholePlanOracle, FourDevicesTwoLayersWithoutShardedParameters) {
  Space space = classic();
  space.zero3 = false;
  compare(4, 2, 4, space, 2572);
}

TEST(WholePlanOracle, FourDevicesTwoLayers) {
  Space space = classic();
  space.data = false;
  compare(4, 2, 4, space, 3136);
}

TEST(WholePlanOracle, FourDevicesTwoLayersWithContextAndStridedGroups) {
  Space space = classic();
  space.ring = space.ulysses = space.strided = true;
  space.data = space.zero2 = space.recompute_full = false;
  compare(4, 2, 2, space, 1218);
}

TEST(WholePlanOracle, FourDevicesThreeLayersWithoutRecomputation) {
  Space space = classic();
  space.recompute_full = false;
  space.zero2 = false;
  compare(4, 3, 4, space, 5254);
}

Space scheduled(bool one_f_one_b, bool interleaved, bool zero_bubble) {
  Space space = classic();
  space.one_f_one_b = one_f_one_b;
  space.interleaved = interleaved;
  space.zero_bubble = zero_bubble;
  return space;
}

TEST(WholePlanOracle, TwoRanksInterleaved) { compare(2, 8, 8, scheduled(false, true, false), 108); }
TEST(WholePlanOracle, TwoRanksOfTwoDevicesInterleaved) {
  compare(4, 5, 8, scheduled(false, true, false), 1744);
}
TEST(WholePlanOracle, FourRanksInterleavedUnevenly) {
  Space space = scheduled(false, true, false);
  space.fix_pp = 4;
  space.zero2 = false;
  compare(4, 11, 8, space, 640);
}
TEST(WholePlanOracle, TwoRanksOfTwoDevicesWithZeroBubbles) {
  compare(4, 3, 8, scheduled(false, false, true), 1744);
}
TEST(WholePlanOracle, FourRanksWithZeroBubbles) {
  Space space = scheduled(false, false, true);
  space.fix_pp = 4;
  compare(4, 7, 8, space, 640);
}
TEST(WholePlanOracle, AllSchedulesTogether) {
  Space space = scheduled(true, true, true);
  space.zero2 = space.sequence_parallel = false;
  compare(2, 4, 8, space, 28'720);
}

constexpr auto kEnergy = costmodel::Objective::kEnergy;
TEST(WholePlanOracle, LeastEnergyOnTwoDevices) { compare(2, 2, 2, classic(), 424, kEnergy); }
TEST(WholePlanOracle, LeastEnergyOnFourDevices) {
  Space space = classic();
  space.zero3 = false;
  compare(4, 2, 4, space, 2572, kEnergy);
}
TEST(WholePlanOracle, LeastEnergyInterleaved) {
  Space space = scheduled(false, true, false);
  space.fix_pp = 4;
  space.zero2 = false;
  compare(4, 11, 8, space, 640, kEnergy);
}
TEST(WholePlanOracle, LeastEnergyWithZeroBubbles) {
  compare(4, 3, 8, scheduled(false, false, true), 1744, kEnergy);
}
TEST(WholePlanOracle, LeastEnergyOfAllSchedules) {
  Space space = scheduled(true, true, true);
  space.zero2 = space.sequence_parallel = false;
  compare(2, 4, 8, space, 28'720, kEnergy);
}

TEST(WholePlanOracle, DevicesMayStayIdle) {
  Space space = classic();
  space.idle = true;
  space.zero2 = space.sequence_parallel = false;
  compare(3, 2, 4, space, 328);
}
TEST(WholePlanOracle, DevicesMayStayIdleUnderAllSchedules) {
  Space space = scheduled(false, true, true);
  space.idle = true;
  compare(5, 4, 4, space, 1832);
}

}  // namespace
}  // namespace orrery::search
