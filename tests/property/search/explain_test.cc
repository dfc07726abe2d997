// Any plan's step, taken apart, is whole again; and so is the difference of any two. What an
// explanation calls the best is not beaten by any plan it shows.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

#include "search/explain/explain.h"
#include "tests/property/plan/random_plan.h"
#include "tests/support/law.h"
#include "tests/unit/costmodel/machines.h"
#include "tests/unit/search/random_machine.h"

namespace orrery::search {
namespace {

costmodel::CostModel cost_of(const model::ModelSpec& model, const plan::Plan& plan, bool overlaps) {
  model::Profile p;
  p.name = "test";
  p.device = "T100";
  p.overlaps = overlaps;
  p.overlap_slowdown = 1.2;
  auto made = costmodel::CostModel::make(model, costmodel::machines::cluster(16), p,
                                         {plan.precision, plan.sequence});
  RC_ASSERT(made.has_value());
  return *std::move(made);
}

std::int64_t sum(const Parts& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
}

RC_GTEST_PROP(Waterfall, AddsUpToTheStepOnEveryStage, (std::uint64_t seed)) {
  const auto [model, plan] = plan::random_plan(seed, 4);
  const costmodel::CostModel cost = cost_of(model, plan, *rc::gen::arbitrary<bool>());
  const auto simulated = simulate_plan(cost, plan);
  RC_PRE(simulated.has_value());
  for (const sim::StageReport& s : simulated->report.stages) {
    RC_ASSERT(sum(s.parts) == simulated->step_ps());
    RC_ASSERT(std::ranges::all_of(s.parts, [](std::int64_t ps) { return ps >= 0; }));
  }
  const auto limits = limits_of(cost, *simulated, simulated->peak_bytes());
  RC_ASSERT(limits.has_value());
  RC_ASSERT(limits->compute_ps + limits->communication_ps + limits->bubble_ps ==
            simulated->step_ps());
  RC_ASSERT(limits->mean_work_ps <= simulated->step_ps() - limits->bubble_ps);
}

// One stage without overlap is a sum of operations; in pipelines, transfers that meet otherwise may
// undo a gain.
RC_GTEST_PROP(Waterfall, FasterDevicesAndLinksNeverSlowOneStage, (std::uint64_t seed)) {
  auto [model, plan] = plan::random_plan(seed, 4);
  for (std::size_t s = 1; s < plan.stages.size(); ++s) {
    for (const auto& run : plan.stages[s].runs) plan.stages[0].runs.push_back(run);
  }
  plan.stages.resize(1);
  const costmodel::CostModel cost = cost_of(model, plan, false);
  const auto simulated = simulate_plan(cost, plan);
  RC_PRE(simulated.has_value());
  const auto computes = simulate_plan(cost.scaled({.compute_ppm = 1'100'000}), plan);
  const auto sends = simulate_plan(cost.scaled({.bandwidth_ppm = 1'100'000}), plan);
  RC_ASSERT(computes.has_value() && sends.has_value());
  RC_ASSERT(computes->step_ps() <= simulated->step_ps());
  RC_ASSERT(sends->step_ps() <= simulated->step_ps());
}

/// A random problem, and one of the plans that its search simulates.
struct Question {
  std::optional<costmodel::CostModel> cost;
  ExplainRequest request;
};
Question draw_question() {
  base::Rng rng(*rc::gen::arbitrary<std::uint64_t>());
  const Machine machine = random_machine(rng, 4);
  Question q;
  q.cost = cost_of(machine, block_kind(static_cast<int>(rng.below(kBlockKinds)),
                                       static_cast<int>(between(rng, 2, 4))));
  PlanRequest& problem = q.request.problem;
  problem.cluster = "random";
  problem.hosts = machine.hosts;
  problem.global_batch = machine.devices() * between(rng, 1, 2);
  problem.memory_bytes = between(rng, 20, 200) * 1'000'000;
  problem.top = 3;
  const auto answer = find_plan(*q.cost, problem);
  RC_ASSERT(answer.has_value());
  RC_PRE(!answer->candidates.empty());
  q.request.plan = answer->candidates[rng.below(answer->candidates.size())].plan;
  return q;
}

// A page is some hundred searches: a quarter of the usual draws, and enough for their share.
TEST(Explanation, NoPlanOfThePageBeatsWhatItCallsTheBest) {
  const int pages = std::max(10, tests::LawOptions{}.draws / 4);
  tests::expect_law({.least_share = 0.5, .draws = pages}, [](tests::Draws& draws) {
    const Question q = draw_question();
    const auto e = explain(*q.cost, q.request);
    RC_ASSERT(e.has_value());
    const std::vector<const Comparison*> known = rivals(*e);
    const std::int64_t best = known.empty()
                                  ? e->plan.step_ps()
                                  : std::min(e->plan.step_ps(), known.front()->simulated.step_ps());
    // Plans named anywhere, also as the best of other machines, simulated on this one.
    const auto holds = [&](const plan::Plan& plan) {
      if (plan.global_batch != q.request.plan.global_batch || plan.hosts != q.request.plan.hosts)
        return true;
      const auto here = simulate_plan(*q.cost, plan);
      return here.has_value() &&
             (here->peak_bytes() > q.request.problem.memory_bytes || here->step_ps() >= best);
    };
    draws.asserts(!known.empty());
    for (const Comparison* c : known) RC_ASSERT(holds(c->simulated.plan));
    for (const WhatIf& w : e->what_ifs) {
      if (!w.best) continue;
      RC_ASSERT(holds(w.best->plan));
      if (w.step_ps) RC_ASSERT(w.best->step_ps() <= *w.step_ps);
    }
    for (const Improvement& x : e->improvements) {
      RC_ASSERT(holds(x.best));
      if (x.kept_gain_ppm) RC_ASSERT(x.best_gain_ppm >= *x.kept_gain_ppm);
    }
    const auto devices = static_cast<std::int64_t>(q.cost->topology().device_count());
    for (const Decision& d : e->decisions) {
      for (const Comparison* c : known) {
        if (!allows(d.space, c->simulated.plan, q.cost->model(), devices)) continue;
        RC_ASSERT(d.best.has_value());
        RC_ASSERT(d.best->simulated.step_ps() <= c->simulated.step_ps());
      }
    }
  });
}

}  // namespace
}  // namespace orrery::search
