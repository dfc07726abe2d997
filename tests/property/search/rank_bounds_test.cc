// Bounds of interleaved and ZB-H1 plans: none is above the cheapest plan, and embedding and head
// only add to the bytes and cycles of a rank.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "search/solvers/rank_solver.h"
#include "tests/support/law.h"
#include "tests/unit/search/random_machine.h"

namespace orrery::search {
namespace {

TEST(RankBounds, StayBelowTheCheapestPlanAndGrowWithTheVocabulary) {
  tests::expect_law({.least_share = 0.3}, [](tests::Draws& draws) {
    base::Rng rng(*rc::gen::arbitrary<std::uint32_t>());
    Machine machine = random_machine(rng, 8);
    while (machine.devices() < 2) machine = random_machine(rng, 8);
    model::ModelSpec model = tiny_model(static_cast<int>(between(rng, 2, 11)));
    model.tied_embeddings = rng.below(3) == 0;
    model.vocab = 512 * between(rng, 1, 40);
    const auto cost = costmodel::CostModel::make(model, build(machine), std::nullopt,
                                                 {model::Precision::kBFloat16, 128});
    RC_ASSERT(cost.has_value());
    const std::int64_t global_batch = between(rng, 1, 2) * 8,
                       memory = between(rng, 20, 300) * 1'000'000;
    const Space space;
    costmodel::LayerCosts costs(*cost);
    StageModel stages(costs, space, global_batch, memory);
    RankSolver ranks(costs, space, stages);
    bool compared = false;
    for (int p = 2; p <= machine.devices() && p <= model.layers; p *= 2) {
      const std::int64_t m = power_of_two(rng, global_batch);
      const auto schedule =
          rng.below(2) == 0 ? plan::Schedule::kInterleaved : plan::Schedule::kZeroBubbleH1;
      PlanProblem problem{.stages = p,
                          .devices = machine.devices() / p,
                          .micro_batches = m,
                          .schedule = schedule,
                          .vocabulary = {}};
      if (!ranks.covers(problem)) continue;
      const std::int64_t layers = stages.layers_bound(problem),
                         room = ranks.family_bound(problem, kForbidden).ps;
      RC_ASSERT(stages.layers_bound(problem, true) <= layers);
      for (const plan::LayerStrategy& vocabulary :
           stages.vocabulary_of(problem.devices, m).leaves) {
        problem.vocabulary = vocabulary;
        const std::int64_t bound = ranks.bound(problem, kForbidden).ps;
        RC_ASSERT(room <= bound);
        Effort effort;
        const auto answer = ranks.solve(problem, kForbidden, Depth::kExact, effort);
        RC_ASSERT(std::max(layers, bound) <= (answer.plan ? answer.form_ps : kForbidden));
        compared = compared || answer.plan.has_value();
        // RC_ASSERT evaluates both sides of "or"
        if (answer.plan) RC_ASSERT(ranks.bound(problem, answer.form_ps).ps <= answer.form_ps);
        // the program adds up what plan_cost charges
        if (answer.plan) RC_ASSERT(costmodel::step_ps(costs, *answer.plan) == answer.form_ps);
      }
    }
    draws.asserts(compared);
  });
}

}  // namespace
}  // namespace orrery::search
