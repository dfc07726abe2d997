#include <gtest/gtest.h>

#include "search/loop/best_first.h"
#include "tests/unit/search/tiny_fixture.h"

namespace orrery::search {
namespace {

/// A search of the tiny model, and what pricing it took.
struct Searched {
  LoopResult loop;
  std::uint64_t priced = 0;
};
Searched searched(std::int64_t memory_bytes, std::uint64_t ticks) {
  const costmodel::CostModel cost = tiny_cost(4, 8);
  PlanRequest request;
  request.cluster = "tiny";
  request.global_batch = 64;
  request.memory_bytes = memory_bytes;
  costmodel::LayerCosts costs(cost);
  StageModel stages(costs, request.space, request.global_batch,
                    costmodel::MemoryLimit(cost, request.memory_bytes));
  auto loop = search_best_first(stages, request, {.ticks = ticks});
  if (!loop) {
    ADD_FAILURE() << base::to_string(loop.error());
    return {};
  }
  return {*std::move(loop), costs.priced()};
}

TEST(Effort, PricesCountAsTicks) {
  // nothing fits, which bounds alone say: no program runs
  const Searched all = searched(1'000'000, kSearchTicks), few = searched(1'000'000, 2'000);
  EXPECT_EQ(all.loop.states, 0U);
  EXPECT_FALSE(all.loop.exhausted);
  EXPECT_GT(all.priced, 12'000U);
  EXPECT_TRUE(few.loop.exhausted);
}

TEST(Effort, OutOfItAPlanIsFoundAllTheSame) {
  const Searched few = searched(1 << 30, 1);
  ASSERT_FALSE(few.loop.finalists.empty());
  EXPECT_TRUE(few.loop.exhausted);
  EXPECT_LT(few.loop.bound_ps, few.loop.finalists.front().closed_form_ps);
  EXPECT_LE(few.loop.multiplier_bound_ps, few.loop.finalists.front().closed_form_ps);
}

TEST(Effort, OutOfItLayersAreBoundByWhatTheyCompute) {
  const costmodel::CostModel cost = tiny_cost(4, 8);
  const Space space;
  costmodel::LayerCosts costs(cost);
  const PlanProblem one{2, 4, 0, 4, plan::Schedule::k1F1B, {}}, other{4, 2, 0, 4, one.schedule, {}};
  StageModel stages(costs, space, 64, costmodel::MemoryLimit(cost, 1 << 30));
  int prices = 5;
  stages.set_limit([&] { return prices-- <= 0; });
  EXPECT_FALSE(stages.price_layers(one));
  EXPECT_EQ(stages.layers_bound(other), stages.layers_bound(other, true));
  stages.set_limit({});
  EXPECT_TRUE(stages.price_layers(one));
  EXPECT_GT(stages.layers_bound(one), stages.layers_bound(one, true));
  stages.set_limit([] { return true; });
  EXPECT_TRUE(stages.price_layers(one));  // done before
}

TEST(Effort, OutOfItTheMultipliersThatMatterAreStated) {
  const Searched all = searched(30'000'000, kSearchTicks), few = searched(30'000'000, 1);
  ASSERT_FALSE(few.loop.multipliers.empty());
  EXPECT_LT(few.loop.multipliers.size(), few.loop.problems);
  EXPECT_GT(few.loop.multiplier_bound_ps, 0);
  EXPECT_LE(few.loop.multiplier_bound_ps, all.loop.finalists.front().closed_form_ps);
}

}  // namespace
}  // namespace orrery::search
