// The bound that multipliers prove, by hand, and the numbers that are no multipliers.
#include "search/proof/multiplier_bound.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "search/programs/pipeline_multipliers.h"
#include "search/space/decision_tree.h"
#include "tests/unit/search/tiny_fixture.h"

namespace orrery::search {
namespace {

std::optional<std::int64_t> bound_of(costmodel::LayerCosts& costs, const Space& space,
                                     const Family& family, const ProblemMultipliers& k,
                                     std::int64_t budget_bytes) {
  return FamilyBound(costs, space, family, budget_bytes).of(k.vocabulary, k);
}

Family family(const costmodel::CostModel& cost, int ranks, int devices, std::int64_t global_batch,
              std::int64_t micro_batches) {
  Family f{.ranks = ranks, .devices = devices, .frame = {}};
  f.frame.model = cost.model().name;
  f.frame.model_fingerprint = cost.model().fingerprint();
  f.frame.sequence = cost.options().sequence;
  f.frame.global_batch = global_batch;
  f.frame.micro_batches = micro_batches;
  return f;
}

ProblemMultipliers multipliers(int ranks, std::int64_t unit, std::int64_t weight,
                               std::vector<std::int64_t> prices) {
  ProblemMultipliers k;
  k.unit = unit;
  k.weights.assign(static_cast<std::size_t>(ranks), weight);
  k.prices.assign(static_cast<std::size_t>(ranks), std::move(prices));
  return k;
}

/// One device, one layer, one micro-batch: kinds of recomputation, 2 ps per byte, by hand.
TEST(MultiplierBound, WorkedExample) {
  const costmodel::CostModel cost = tiny_cost(1, 1);
  costmodel::LayerCosts costs(cost);
  const Family f = family(cost, 1, 1, 1, 1);
  const plan::LayerContext context{.sequence = 128, .micro_batch_sequences = 1, .global_batch = 1};
  const costmodel::LayerCost &embedding = costs.embedding({}, context, 0, 1),
                             &head = costs.head({}, context, 0, 1);
  constexpr std::int64_t kPrice = 2, kBudget = 10'000'000;
  const std::int64_t stream = 128 * 256 * 2;
  std::int64_t least = kBeyondAnyCost, transient = kBeyondAnyCost;
  for (const auto recompute :
       {plan::Recompute::kNone, plan::Recompute::kSelective, plan::Recompute::kFull}) {
    const costmodel::LayerCost& c = costs.block({.recompute = recompute}, context, 0, 1);
    least = std::min(least, c.forward_ps + c.backward_sync_ps + c.update_ps +
                                kPrice * (c.persistent_bytes + c.forward.delta_bytes));
    transient = std::min(transient, stream + std::max(c.backward.peak_bytes,
                                                      c.backward.delta_bytes + c.sync.peak_bytes));
  }
  const std::int64_t kept = stream + head.forward.delta_bytes;
  const std::int64_t heads = std::max(
      head.forward.peak_bytes - head.forward.delta_bytes,
      std::max(head.backward.peak_bytes, head.backward.delta_bytes + head.sync.peak_bytes));
  std::int64_t own =
      kPrice * (embedding.persistent_bytes + embedding.forward.delta_bytes - stream +
                head.persistent_bytes + kept + 4 + std::max(transient - kept, heads) - kBudget);
  for (const costmodel::LayerCost* c : {&embedding, &head})
    own += c->forward_ps + c->backward_sync_ps + c->update_ps;
  own +=
      cost.segment_ps({.kind = model::SegmentKind::kZeroGradient, .elements = 1}, model::Phase::kF);
  const std::int64_t by_hand = least + own;
  // Beside a price of 0, which is the better one where memory suffices.
  const auto priced = bound_of(costs, {}, f, multipliers(1, 1, 1, {kPrice}), kBudget);
  const auto free = bound_of(costs, {}, f, multipliers(1, 1, 1, {}), kBudget);
  ASSERT_TRUE(priced && free);
  EXPECT_EQ(*priced, std::max(by_hand, *free));
  EXPECT_GT(*priced, *free);
}

TEST(MultiplierBound, ARationalIsOneByItsValue) {
  const costmodel::CostModel cost = tiny_cost(2, 4);
  costmodel::LayerCosts costs(cost);
  const Family f = family(cost, 2, 1, 4, 4);
  const auto small = bound_of(costs, {}, f, multipliers(2, 2, 1, {6}), 10'000'000);
  const auto large = bound_of(costs, {}, f, multipliers(2, 2000, 1000, {6000}), 10'000'000);
  ASSERT_TRUE(small);
  EXPECT_EQ(small, large);
}

TEST(MultiplierBound, WhatNoPriceCanPayProvesThatNothingFits) {
  const costmodel::CostModel cost = tiny_cost(2, 4);
  costmodel::LayerCosts costs(cost);
  const Family f = family(cost, 2, 1, 4, 4);
  EXPECT_EQ(bound_of(costs, {}, f, multipliers(2, 2, 1, {kRay}), 1000), kBeyondAnyCost);
}

/// Where there is one strategy, nothing is relaxed but the partition and the transients: the bound
/// is close, and a rank that fits has no price to pay.
class EverySchedule : public testing::TestWithParam<plan::Schedule> {};

TEST_P(EverySchedule, OfOneStrategyIsBoundClosely) {
  const costmodel::CostModel cost = tiny_cost(2, 8);
  costmodel::LayerCosts costs(cost);
  Space space;
  space.recompute_selective = space.recompute_full = false;
  Family f = family(cost, 2, 1, 8, 8);
  f.frame.schedule = GetParam();
  plan::Plan plan = f.frame;
  plan.stages.assign(2, {{{4, {}}}});
  const auto priced = costmodel::plan_cost(costs, plan);
  ASSERT_TRUE(priced) << base::to_string(priced.error());
  const std::int64_t peak = std::ranges::max(priced->stage_peak_bytes), cost_ps = priced->step_ps;
  const auto bound = [&](std::vector<std::int64_t> prices, std::int64_t budget) {
    return bound_of(costs, space, f, multipliers(2, 2, 1, std::move(prices)), budget).value();
  };
  EXPECT_LE(bound({}, peak), cost_ps);
  EXPECT_GE(bound({}, peak), cost_ps - cost_ps / 8);
  constexpr std::int64_t kDear = 1'000'000'000'000;
  EXPECT_LE(bound({kDear}, peak), cost_ps);
  EXPECT_GT(bound({kDear}, peak - peak / 4), cost_ps);
}
INSTANTIATE_TEST_SUITE_P(Schedules, EverySchedule,
                         testing::Values(plan::Schedule::kGPipe, plan::Schedule::k1F1B));

TEST(MultiplierBound, RefusesWhatIsNoMultiplier) {
  const costmodel::CostModel cost = tiny_cost(2, 4);
  costmodel::LayerCosts costs(cost);
  const Family f = family(cost, 2, 1, 4, 4);
  const auto refused = [&](const ProblemMultipliers& k) {
    return !bound_of(costs, {}, f, k, 10'000'000);
  };
  EXPECT_FALSE(refused(multipliers(2, 2, 1, {1})));
  EXPECT_TRUE(refused(multipliers(2, 0, 0, {})));
  EXPECT_TRUE(refused(multipliers(2, 2, 2, {})));  // weights above one in all
  EXPECT_TRUE(refused(multipliers(2, 2, -1, {})));
  EXPECT_TRUE(refused(multipliers(1, 2, 1, {})));  // of one rank
  ProblemMultipliers below = multipliers(2, 2, 1, {});
  below.weights = {3, -1};
  EXPECT_TRUE(refused(below));
  EXPECT_TRUE(refused(multipliers(2, 2, 1, {-1})));
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  // 2^126 for each of four ranks.
  const costmodel::CostModel four = tiny_cost(4, 4);
  costmodel::LayerCosts of_four(four);
  EXPECT_FALSE(
      bound_of(of_four, {}, family(four, 4, 1, 4, 4), multipliers(4, 4, 1, {kLargest}), -kLargest));
}

std::vector<plan::LayerStrategy> one_kind(const Space& space, const Family& family,
                                          const costmodel::CostModel& cost) {
  const auto by_kind = stated_strategies(space, family, cost);
  return by_kind.empty() ? std::vector<plan::LayerStrategy>{} : by_kind.front();
}

/// The checker's enumeration against the search's, in both directions.
TEST(StatedSpace, HoldsWhatTheDecisionTreeHolds) {
  std::vector<Space> spaces(6);
  spaces[1].ring = spaces[1].ulysses = spaces[1].strided = true;
  spaces[2].tensor_alone = spaces[2].zero1 = spaces[2].recompute_none = false;
  spaces[3].fix_tp = 2;
  spaces[3].vocabulary_like_layers = true;
  spaces[3].reduce_per_step = false;
  spaces[4].data = spaces[4].sequence_parallel = spaces[4].hybrid =
      spaces[4].reduce_per_micro_batch = false;
  spaces[5].tensor = false;
  spaces[5].fix_micro_batch = 2;
  spaces[5].recompute_full = false;
  std::size_t seen = 0;
  for (const int devices : {1, 2, 4, 6, 8}) {
    const costmodel::CostModel cost = tiny_cost(devices, 2);
    for (const Space& space : spaces) {
      for (const std::int64_t m : {1, 2, 3}) {
        const Family f = family(cost, 1, devices, 24, m);
        const TreeContext context{devices, 128, 24 / m, m, devices};
        auto stated = one_kind(space, f, cost),
             tree = layer_strategies(cost.model(), space, context).leaves;
        EXPECT_EQ(stated.size(), tree.size()) << devices << " devices, m = " << m;
        EXPECT_TRUE(std::ranges::is_permutation(stated, tree)) << devices << " devices, m = " << m;
        seen += stated.size();
        stated = stated_vocabularies(space, f, cost);
        tree = vocabulary_strategies(cost.model(), space, context).leaves;
        EXPECT_TRUE(std::ranges::is_permutation(stated, tree)) << devices << " devices, m = " << m;
      }
    }
  }
  EXPECT_GT(seen, 1000U);
}

TEST(StatedSpace, OfExpertsAndHosts) {
  model::ModelSpec model = tiny_model(2);
  model.experts = 4;
  model.experts_per_token = 2;
  const auto cost = costmodel::CostModel::make(model, tiny_cluster(8), std::nullopt,
                                               {model::Precision::kBFloat16, 128});
  ASSERT_TRUE(cost) << base::to_string(cost.error());
  for (const bool expert : {false, true}) {
    Space space;
    space.expert = expert;
    const Family f = family(*cost, 2, 4, 16, 2);
    const auto stated = one_kind(space, f, *cost);
    const auto tree = layer_strategies(model, space, {4, 128, 8, 2, 8}).leaves;
    EXPECT_TRUE(std::ranges::is_permutation(stated, tree))
        << stated.size() << " and " << tree.size();
    EXPECT_EQ(std::ranges::any_of(stated, [](const plan::LayerStrategy& s) { return s.ep > 1; }),
              expert);
  }
}

/// One stage of two layers, budget 6, options (time, bytes) = (1, 5), (4, 1):
/// pipeline_multipliers.h.
TEST(PipelineMultipliers, WorkedExample) {
  PipelineStage stage;
  stage.layers.layouts = 1;
  stage.layers.budget_bytes = 6;
  stage.layers.options = {{.steady_ps = 1, .memory_bytes = 5}, {.steady_ps = 4, .memory_bytes = 1}};
  stage.fewest = stage.most = 2;
  const PipelineMultipliers found =
      pipeline_multipliers({.stages = {stage}, .layers = 2, .micro_batches = 1});
  EXPECT_EQ(found.bound_ps, 5);
  ASSERT_EQ(found.prices, (std::vector<std::vector<std::int64_t>>{{found.unit / 4 * 3}}));
  EXPECT_EQ(found.weights, std::vector<std::int64_t>{found.unit});
}

TEST(PipelineMultipliers, WhatFitsNowhereIsBeyondAnyCost) {
  PipelineStage stage;
  stage.layers.layouts = 1;
  stage.layers.budget_bytes = 1;
  stage.layers.options = {{.steady_ps = 1, .memory_bytes = 1 << 30}};
  EXPECT_EQ(
      pipeline_multipliers({.stages = {stage, stage}, .layers = 2, .micro_batches = 4}).bound_ps,
      kForbidden);
}

}  // namespace
}  // namespace orrery::search
