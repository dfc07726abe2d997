// find_plan on clusters with two kinds of device against the enumeration of every plan in both
// orders of them, priced by costmodel::plan_cost: partitions, strategies, memory by stage. What is
// called optimal is the cheapest plan that fits, to the picosecond.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <limits>

#include "search/loop/planner.h"
#include "tests/oracle/search/every_plan.h"
#include "tests/unit/search/checked_answer.h"
#include "tests/unit/search/mixed_fixture.h"
#include "topologies/device_order.h"

namespace orrery::search {
namespace {

Space classic() {
  Space space;
  space.gpipe = space.zero1 = space.zero2 = space.recompute_selective = space.ring = space.ulysses =
      space.hybrid = space.strided = space.sequence_parallel = false;
  space.interleaved = space.zero_bubble = space.idle = false;
  return space;
}

struct Machine {
  int fast_hosts = 1, slow_hosts = 1, devices = 1;
  double slowness = 2;
  [[nodiscard]] topologies::Topology with(std::int64_t slow_bytes) const {
    return mixed_cluster(fast_hosts, slow_hosts, devices, slowness, slow_bytes);
  }
};

struct Best {
  std::int64_t cost_ps = std::numeric_limits<std::int64_t>::max();
  std::int64_t excess_bytes = std::numeric_limits<std::int64_t>::max();
  std::int64_t smallest = std::numeric_limits<std::int64_t>::max(), largest = 0;
};
/// Of every plan in every order.
Best enumerated(const costmodel::CostModel& cost, const Space& space, std::int64_t global_batch) {
  Best best;
  for (const auto& order : topologies::device_orders(cost.topology())) {
    const costmodel::CostModel there = *cost.in_order(order);
    const costmodel::MemoryLimit usable = costmodel::MemoryLimit(there, 0).usable(there);
    for (const Priced& p : EveryPlan(there, space, global_batch, usable).all) {
      best.excess_bytes = std::min(best.excess_bytes, p.excess_bytes);
      best.smallest = std::min(best.smallest, p.peak_bytes);
      best.largest = std::max(best.largest, p.peak_bytes);
      if (p.excess_bytes <= 0) best.cost_ps = std::min(best.cost_ps, p.cost_ps);
    }
  }
  return best;
}

/// Slow devices with memory for the smallest plans, for all, and between; and one with too little.
void compare(const Machine& machine, int layers, std::int64_t global_batch, const Space& space) {
  constexpr std::int64_t kRoomy = std::int64_t{1} << 30;
  const costmodel::CostModel roomy = mixed_cost(machine.with(kRoomy), layers);
  const Best range = enumerated(roomy, space, global_batch);
  int feasible = 0, optimal = 0, equal = 0, slow_first = 0;
  for (int k = 0; k <= 8; ++k) {
    const std::int64_t bytes =
        range.smallest / 4 + (range.largest - range.smallest / 4) * k / 8 + roomy.context_bytes();
    const costmodel::CostModel cost = mixed_cost(machine.with(bytes), layers);
    const Best every = enumerated(cost, space, global_batch);
    PlanRequest request;
    request.global_batch = global_batch;
    request.space = space;
    request.top = 2;
    request.relax = false;
    const auto answer = find_plan(cost, request);
    ASSERT_TRUE(answer.has_value()) << base::to_string(answer.error());
    if (every.excess_bytes > 0) {
      EXPECT_EQ(answer->status, Status::kInfeasible);
      EXPECT_EQ(answer->shortfall_bytes, every.excess_bytes);
      continue;
    }
    ++feasible;
    ASSERT_NE(answer->status, Status::kInfeasible) << bytes << " bytes";
    EXPECT_LE(answer->certificate.bound_ps, every.cost_ps) << bytes << " bytes";
    EXPECT_GE(answer->certificate.cost_ps, every.cost_ps) << bytes << " bytes";
    if (answer->status == Status::kOptimal) {
      ++optimal;
      EXPECT_EQ(answer->certificate.cost_ps, every.cost_ps) << bytes << " bytes";
    }
    EXPECT_EQ(checkers_fault(cost, *answer), "") << bytes << " bytes";
    const auto& order = answer->candidates.front().plan.device_order;
    EXPECT_EQ(order.size(), 2u);
    slow_first += order.front() == "slow" ? 1 : 0;
    equal += answer->certificate.cost_ps == every.cost_ps ? 1 : 0;
  }
  std::cout << "optimal " << optimal << ", the true optimum " << equal << ", of " << feasible
            << " memories, slow devices first in " << slow_first << "\n";
  EXPECT_GE(feasible, 5);
  EXPECT_EQ(equal, feasible);
  EXPECT_GE(2 * optimal, feasible);  // a slow last stage's update may reach beyond the first's
}

TEST(MixedClusterOracle, TwoDevicesThreeLayers) { compare({1, 1, 1, 2}, 3, 2, classic()); }
TEST(MixedClusterOracle, TwoDevicesThreeLayersOneFourTimesSlower) {
  compare({1, 1, 1, 4}, 3, 4, classic());
}
TEST(MixedClusterOracle, HostsOfTwoDevices) {
  Space space = classic();
  space.zero3 = false;
  compare({1, 1, 2, 3}, 2, 4, space);
}
TEST(MixedClusterOracle, AStageMaySpanKinds) {
  Space space = classic();
  space.recompute_full = false;
  compare({2, 1, 1, 2}, 3, 3, space);
}
TEST(MixedClusterOracle, InterleavedAndZeroBubbles) {
  Space space = classic();
  space.interleaved = space.zero_bubble = true;
  space.zero3 = false;
  compare({1, 1, 1, 3}, 5, 4, space);
}

// Twice as fast, so about twice as many layers.
TEST(MixedClusterOracle, FastDevicesTakeMoreLayers) {
  Space space = classic();
  space.fix_pp = 2;
  space.fix_micro_batches = 8;
  const costmodel::CostModel cost =
      mixed_cost(mixed_cluster(1, 1, 1, 2, std::int64_t{1} << 30), 12);
  PlanRequest request;
  request.global_batch = 8;
  request.space = space;
  const auto answer = find_plan(cost, request);
  ASSERT_TRUE(answer.has_value());
  const plan::Plan& plan = answer->candidates.front().plan;
  const std::size_t fast = plan.device_order.front() == "fast" ? 0 : 1;
  EXPECT_GE(plan.stages[fast].layers(), 7);
  EXPECT_LE(plan.stages[1 - fast].layers(), 5);
}

}  // namespace
}  // namespace orrery::search
