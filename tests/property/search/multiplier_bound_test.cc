// Whatever the multipliers: no plan that fits is cheaper than what they prove; and what the search
// claims of its own, the checker proves.
#include "search/proof/multiplier_bound.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "costmodel/closed_form/layer_costs.h"
#include "search/costs/stage_model.h"
#include "search/programs/pipeline_multipliers.h"
#include "tests/unit/search/tiny_fixture.h"

namespace orrery::search {
namespace {

std::optional<std::int64_t> bound_of(costmodel::LayerCosts& costs, const Space& space,
                                     const Family& family, const ProblemMultipliers& k,
                                     std::int64_t budget_bytes) {
  return FamilyBound(costs, space, family, budget_bytes).of(k.vocabulary, k);
}

struct Drawn {
  Family family;
  plan::Plan plan;
};

/// A plan of 1F1B or GPipe, its layers of two strategies.
Drawn draw_plan(const costmodel::CostModel& cost, const Space& space, int layers) {
  const auto devices = static_cast<int>(cost.topology().device_count());
  Drawn d;
  d.family.ranks = *rc::gen::suchThat(rc::gen::element(1, 2, 4),
                                      [&](int p) { return p <= devices && p <= layers; });
  d.family.devices = devices / d.family.ranks;
  plan::Plan& f = d.family.frame;
  f.model = cost.model().name;
  f.model_fingerprint = cost.model().fingerprint();
  f.sequence = cost.options().sequence;
  f.global_batch = 8;
  f.micro_batches = *rc::gen::element<std::int64_t>(1, 2, 4, 8);
  f.schedule = *rc::gen::element(plan::Schedule::kGPipe, plan::Schedule::k1F1B);
  const auto by_kind = stated_strategies(space, d.family, cost);
  const auto vocabularies = stated_vocabularies(space, d.family, cost);
  RC_PRE(!by_kind.empty() && !vocabularies.empty());
  const std::vector<plan::LayerStrategy>& strategies = by_kind.front();
  const auto some =
      *rc::gen::container<std::vector<plan::LayerStrategy>>(2, rc::gen::elementOf(strategies));
  d.plan = f;
  d.plan.vocabulary = *rc::gen::elementOf(vocabularies);
  const int stages = d.family.ranks;
  int left = layers;
  for (int s = 0; s < stages; ++s) {
    const int count = s + 1 == stages ? left : *rc::gen::inRange(1, left - (stages - s - 1) + 1);
    left -= count;
    d.plan.stages.emplace_back();
    for (int k = 0; k < count; ++k)
      d.plan.stages.back().runs.push_back({1, *rc::gen::elementOf(some)});
  }
  return d;
}

ProblemMultipliers draw_multipliers(const Family& family) {
  ProblemMultipliers k;
  k.unit = *rc::gen::inRange<std::int64_t>(1, 1000);
  std::int64_t left = k.unit;
  const bool equal = *rc::gen::arbitrary<bool>();
  for (int r = 0; r < family.ranks; ++r) {
    k.weights.push_back(equal ? k.unit / family.ranks
                              : *rc::gen::inRange<std::int64_t>(0, left + 1));
    left -= k.weights.back();
    // Up to 10 ps per byte, on times around 10^9 ps and sizes around 10^7 bytes; or so many that
    // one byte too much is beyond any cost.
    const auto dearest = *rc::gen::element<std::int64_t>(10, 1'000'000'000'000);
    const auto count = *rc::gen::inRange<std::size_t>(0, 3);
    k.prices.push_back(*rc::gen::container<std::vector<std::int64_t>>(
        count, rc::gen::inRange<std::int64_t>(0, dearest * k.unit)));
  }
  return k;
}

RC_GTEST_PROP(MultiplierBound, NoPlanThatFitsIsCheaper, ()) {
  const int devices = *rc::gen::element(1, 2, 4), layers = *rc::gen::inRange(1, 8);
  const costmodel::CostModel cost = tiny_cost(devices, layers);
  costmodel::LayerCosts costs(cost);
  Space space;
  space.ring = space.ulysses = space.strided = true;
  if (*rc::gen::arbitrary<bool>()) {  // one strategy: the bound is close
    space.tensor = space.zero1 = space.zero2 = space.zero3 = space.recompute_selective =
        space.recompute_full = false;
    space.ring = space.ulysses = false;
  }
  const Drawn d = draw_plan(cost, space, layers);
  const auto priced = costmodel::plan_cost(costs, d.plan);
  RC_ASSERT(priced.has_value());
  ProblemMultipliers k = draw_multipliers(d.family);
  k.vocabulary = d.plan.vocabulary;
  const auto bound =
      bound_of(costs, space, d.family, k, std::ranges::max(priced->stage_peak_bytes));
  RC_ASSERT(bound.has_value());
  RC_ASSERT(*bound <= priced->step_ps);
}

RC_GTEST_PROP(MultiplierBound, IsNotBelowTheSearchsClaim, ()) {
  const int devices = *rc::gen::element(1, 2, 4), layers = *rc::gen::inRange(1, 10);
  const costmodel::CostModel cost = tiny_cost(devices, layers);
  costmodel::LayerCosts costs(cost);
  Space space;
  space.ring = space.ulysses = space.strided = *rc::gen::arbitrary<bool>();
  space.recompute_full = *rc::gen::arbitrary<bool>();
  space.zero3 = *rc::gen::arbitrary<bool>();
  const std::int64_t budget = *rc::gen::inRange<std::int64_t>(1, 60) * 1'000'000;
  StageModel model(costs, space, 8, budget);
  PlanProblem problem;
  problem.schedule = *rc::gen::element(plan::Schedule::kGPipe, plan::Schedule::k1F1B);
  problem.stages = *rc::gen::suchThat(rc::gen::element(1, 2, 4),
                                      [&](int p) { return p <= devices && p <= layers; });
  problem.micro_batches = *rc::gen::element<std::int64_t>(1, 2, 4, 8);
  problem.devices = devices / problem.stages;
  const StrategyTree& vocabulary = model.vocabulary_of(problem.devices, problem.micro_batches);
  RC_PRE(!vocabulary.leaves.empty() &&
         !model.layers_of(problem.devices, problem.micro_batches).leaves.empty());
  problem.vocabulary =
      vocabulary.leaves[*rc::gen::inRange<std::size_t>(0, vocabulary.leaves.size())];
  const PipelineProblem pipeline = model.pipeline(problem);
  const PipelineMultipliers found = pipeline_multipliers(pipeline);
  Family family{.ranks = problem.stages, .devices = problem.devices, .frame = {}};
  family.frame.model = cost.model().name;
  family.frame.model_fingerprint = cost.model().fingerprint();
  family.frame.sequence = cost.options().sequence;
  family.frame.global_batch = 8;
  family.frame.micro_batches = problem.micro_batches;
  family.frame.schedule = problem.schedule;
  ProblemMultipliers k;
  k.vocabulary = problem.vocabulary;
  k.unit = found.unit;
  k.weights = found.weights;
  k.prices = found.prices;
  const auto bound = bound_of(costs, space, family, k, budget);
  RC_ASSERT(bound.has_value());
  RC_ASSERT(found.bound_ps <= *bound);
  // As good as the relaxation: prices are rounded to a millionth.
  const std::int64_t relaxed = pipeline_bound(pipeline);
  if (relaxed < kForbidden) RC_ASSERT(found.bound_ps >= relaxed - relaxed / 100'000);
}

}  // namespace
}  // namespace orrery::search
