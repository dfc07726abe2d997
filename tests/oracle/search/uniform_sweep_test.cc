// The sweep of uniform plans against plans built one by one and priced whole by
// costmodel::plan_cost.
#include "search/explain/uniform_sweep.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "search/loop/planner.h"
#include "search/space/decision_tree.h"
#include "tests/unit/search/tiny_fixture.h"

namespace orrery::search {
namespace {

struct Priced {
  std::int64_t step_ps, peak_bytes;
};

std::vector<Priced> all_uniform(costmodel::LayerCosts& costs, const PlanRequest& request) {
  std::vector<Priced> all;
  const costmodel::CostModel& cost = costs.cost();
  const int world = static_cast<int>(cost.topology().device_count()),
            layers = static_cast<int>(cost.model().layers);
  for (int stages = 1; stages <= std::min(world, layers); ++stages) {
    if (world % stages != 0 || layers % stages != 0) continue;
    for (std::int64_t m = 1; m <= request.global_batch; ++m) {
      if (request.global_batch % m != 0) continue;
      const TreeContext tree{world / stages, cost.options().sequence, request.global_batch / m, m,
                             static_cast<int>(cost.topology().devices_per_host())};
      for (const auto& v : vocabulary_strategies(cost.model(), request.space, tree).leaves) {
        for (const auto& s : layer_strategies(cost.model(), request.space, tree).leaves) {
          plan::Plan plan;
          plan.model = cost.model().name;
          plan.model_fingerprint = cost.model().fingerprint();
          plan.precision = cost.options().precision;
          plan.sequence = cost.options().sequence;
          plan.global_batch = request.global_batch;
          plan.micro_batches = m;
          plan.vocabulary = v;
          plan.stages.assign(static_cast<std::size_t>(stages), {{{layers / stages, s}}});
          const auto priced = costmodel::plan_cost(costs, plan);
          EXPECT_TRUE(priced.has_value()) << base::to_string(priced.error());
          if (priced) all.push_back({priced->step_ps, std::ranges::max(priced->stage_peak_bytes)});
        }
      }
    }
  }
  return all;
}

void compare(int devices, int layers, std::int64_t global_batch, std::size_t plans) {
  const costmodel::CostModel cost = tiny_cost(devices, layers);
  costmodel::LayerCosts costs(cost);
  PlanRequest request;
  request.global_batch = global_batch;
  request.space.ring = request.space.ulysses = request.space.strided = true;
  const std::vector<Priced> all = all_uniform(costs, request);
  ASSERT_EQ(all.size(), plans);
  const auto [least, most] = std::ranges::minmax(all, {}, &Priced::peak_bytes);
  for (int k = -1; k <= 16; ++k) {
    const std::int64_t limit = least.peak_bytes + (most.peak_bytes - least.peak_bytes) * k / 16;
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    std::uint64_t fitting = 0;
    for (const Priced& p : all) {
      if (p.peak_bytes > limit) continue;
      best = std::min(best, p.step_ps);
      ++fitting;
    }
    const UniformSweep sweep = sweep_uniform(costs, request, limit);
    EXPECT_EQ(sweep.evaluated, all.size());
    EXPECT_GE(sweep.fitting, fitting) << "the form of memory is a lower bound";
    EXPECT_EQ(sweep.best.has_value(), fitting > 0);
    EXPECT_EQ(sweep.best_ps, best) << devices << " devices, limit " << limit;
    if (sweep.best) {
      EXPECT_EQ(costmodel::plan_cost(costs, *sweep.best)->step_ps, sweep.best_ps);
    }
  }
}

TEST(UniformSweep, EqualsPlansPricedOneByOne) {
  compare(4, 4, 4, 4107);
  compare(8, 4, 8, 18'816);
  compare(4, 3, 2, 1176);
  compare(2, 6, 6, 606);
}

TEST(UniformSweep, IsNeverFasterThanTheBoundOfTheSearch) {
  const costmodel::CostModel cost = tiny_cost(4, 6);
  costmodel::LayerCosts costs(cost);
  PlanRequest request;
  request.global_batch = 8;
  int compared = 0;
  for (const std::int64_t megabytes : {20, 30, 45, 80}) {
    request.memory_bytes = megabytes * 1'000'000;
    const UniformSweep sweep =
        sweep_uniform(costs, request, request.memory_bytes - cost.context_bytes());
    const auto answer = find_plan(cost, request);
    ASSERT_TRUE(answer.has_value());
    if (!sweep.best) continue;
    ASSERT_NE(answer->status, Status::kInfeasible);
    EXPECT_LE(answer->certificate.bound_ps, sweep.best_ps);
    EXPECT_LE(answer->certificate.cost_ps, sweep.best_ps) << megabytes;
    ++compared;
  }
  EXPECT_EQ(compared, 4);
}

}  // namespace
}  // namespace orrery::search
