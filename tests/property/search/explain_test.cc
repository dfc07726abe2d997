// Any plan's step, taken apart, is whole again; and so is the difference of any two.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

#include "search/explain/limits.h"
#include "tests/property/plan/random_plan.h"
#include "tests/unit/costmodel/machines.h"

namespace orrery::search {
namespace {

costmodel::CostModel cost_of(const model::ModelSpec& model, const plan::Plan& plan, bool overlaps) {
  model::Profile p;
  p.name = "test";
  p.device = "T100";
  p.overlaps = overlaps;
  p.overlap_slowdown = 1.2;
  auto made = costmodel::CostModel::make(model, costmodel::machines::cluster(16), p, {plan.precision, plan.sequence});
  RC_ASSERT(made.has_value());
  return *std::move(made);
}

std::int64_t sum(const Parts& parts) { return std::accumulate(parts.begin(), parts.end(), std::int64_t{0}); }

RC_GTEST_PROP(Waterfall, AddsUpToTheStepOnEveryStage, (std::uint64_t seed)) {
  const auto [model, plan] = plan::random_plan(seed, 4);
  const costmodel::CostModel cost = cost_of(model, plan, *rc::gen::arbitrary<bool>());
  const auto account = account_of(cost, plan);
  RC_PRE(account.has_value());
  for (const sim::StageReport& s : account->report.stages) {
    RC_ASSERT(sum(s.parts) == account->step_ps());
    RC_ASSERT(std::ranges::all_of(s.parts, [](std::int64_t ps) { return ps >= 0; }));
  }
  const auto limits = limits_of(cost, *account, account->peak_bytes());
  RC_ASSERT(limits.has_value());
  RC_ASSERT(limits->compute_ps + limits->communication_ps + limits->bubble_ps == account->step_ps());
  RC_ASSERT(limits->mean_work_ps <= account->step_ps() - limits->bubble_ps);
}

// One stage without overlap is a sum of operations; in pipelines, transfers that meet otherwise may undo a gain.
RC_GTEST_PROP(Waterfall, FasterDevicesAndLinksNeverSlowOneStage, (std::uint64_t seed)) {
  auto [model, plan] = plan::random_plan(seed, 4);
  for (std::size_t s = 1; s < plan.stages.size(); ++s) {
    for (const auto& run : plan.stages[s].runs) plan.stages[0].runs.push_back(run);
  }
  plan.stages.resize(1);
  const costmodel::CostModel cost = cost_of(model, plan, false);
  const auto account = account_of(cost, plan);
  RC_PRE(account.has_value());
  const auto computes = account_of(cost.scaled({.compute_ppm = 1'100'000}), plan);
  const auto sends = account_of(cost.scaled({.bandwidth_ppm = 1'100'000}), plan);
  RC_ASSERT(computes.has_value() && sends.has_value());
  RC_ASSERT(computes->step_ps() <= account->step_ps());
  RC_ASSERT(sends->step_ps() <= account->step_ps());
}

}  // namespace
}  // namespace orrery::search
