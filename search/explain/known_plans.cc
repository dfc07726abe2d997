#include "search/explain/known_plans.h"

#include <algorithm>

#include "base/numbers.h"
#include "search/explain/decisions.h"
#include "search/programs/layer_program.h"

namespace orrery::search {
namespace {

std::string key_of(const plan::Plan& plan) { return plan::fingerprint(plan::canonical(plan)); }

}  // namespace

base::Result<void> KnownPlans::add(const plan::Plan& plan) {
  if (known_.contains(key_of(plan))) return {};
  TRY(SimulatedPlan simulated, simulate_plan(cost_, plan));
  add(std::move(simulated));
  return {};
}

void KnownPlans::add(SimulatedPlan simulated) {
  if (!known_.insert(key_of(simulated.plan)).second || simulated.peak_bytes() > limit_bytes_)
    return;
  const auto after =
      std::ranges::upper_bound(plans_, simulated.step_ps(), {}, &SimulatedPlan::step_ps);
  plans_.insert(after, std::move(simulated));
}

void KnownPlans::add(const std::vector<Candidate>& candidates) {
  for (const Candidate& c : candidates) {
    kindest_ = std::min(kindest_, real(c.report.step_time_ps) / real(c.closed_form_ps));
    add(simulate_plan(c));
  }
}

base::Result<KnownPlans::Searched> KnownPlans::search(PlanRequest request, RunnersUp runners_up) {
  for (const Search& s : searches_) {
    if (s.runners_up == runners_up && s.space == request.space) return s.result;
  }
  const Space space = request.space;
  TRY(const Searched result, search_anew(std::move(request), runners_up));
  searches_.push_back({space, runners_up, result});
  return result;
}

base::Result<KnownPlans::Searched> KnownPlans::search_anew(PlanRequest request,
                                                           RunnersUp runners_up) {
  constexpr int kKept = 32;  // plans that a search keeps
  constexpr std::uint64_t kProblemStates = 30'000;
  // simulated together: a number of its own, so that threads change nothing
  constexpr std::size_t kAtOnce = 4;
  request.top = std::max(request.top, kKept);
  request.relax = request.multipliers = false;
  const std::int64_t budget = cost_.usable_bytes(limit_bytes_);
  costmodel::LayerCosts costs(cost_);
  StageModel stages(costs, request.space, request.global_batch, budget);
  TRY(const LoopResult loops, search_best_first(stages, request, {runners_up, kProblemStates}));
  if (loops.finalists.empty())
    return Searched{false, loops.least_peak_bytes >= kForbidden
                               ? 0
                               : cost_.reserved_bytes(loops.least_peak_bytes) - limit_bytes_};
  std::vector<Finalist> batch;
  const auto simulate = [&]() -> base::Result<void> {
    TRY(const Evaluated evaluated, evaluate(cost_, batch, threads_));
    add(evaluated.candidates);
    batch.clear();
    return {};
  };
  for (const Finalist& f : loops.finalists) {
    if (batch.empty() && runners_up == RunnersUp::kCheapest) {
      const SimulatedPlan* best = this->best(request.space);
      if (best != nullptr && real(f.closed_form_ps) * kindest_ >= real(best->step_ps())) break;
    }
    if (!known_.contains(key_of(f.plan))) batch.push_back(f);
    if (batch.size() == kAtOnce) TRY_VOID(simulate());
  }
  TRY_VOID(simulate());
  return Searched{true, 0};
}

const SimulatedPlan* KnownPlans::best(const Space& space) const {
  const auto devices = static_cast<std::int64_t>(cost_.topology().device_count());
  const auto found = std::ranges::find_if(plans_, [&](const SimulatedPlan& a) {
    return allows(space, a.plan, cost_.model(), devices);
  });
  return found == plans_.end() ? nullptr : &*found;
}

}  // namespace orrery::search
