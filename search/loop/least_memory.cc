#include "search/loop/least_memory.h"

#include <algorithm>
#include <utility>

#include "base/numbers.h"

namespace orrery::search {

std::int64_t excess_bytes(StageModel& stages, const Finalist& f) {
  std::int64_t excess = -kForbidden;
  for (std::size_t i = 0; i < f.stage_peak_bytes.size(); ++i)
    excess =
        std::max(excess, f.stage_peak_bytes[i] -
                             stages.memory().of_stage(stages.costs().cost(), f.plan, as_int(i)));
  return excess;
}

base::Result<LeastMemory> least_memory(Solvers& solvers, std::vector<PlanProblem> problems,
                                       bool plain, const PricePlan& price) {
  // to ask what a problem needs, and for its plan, takes so long
  constexpr std::size_t kAsked = 1'000, kTried = 24;
  if (plain)
    std::erase_if(problems, [](const PlanProblem& p) {
      return p.schedule == plan::Schedule::kInterleaved ||
             p.schedule == plan::Schedule::kZeroBubbleH1;
    });
  if (problems.size() > kAsked) {
    std::ranges::stable_sort(problems, std::ranges::greater{}, &PlanProblem::micro_batches);
    problems.resize(kAsked);
  }
  std::vector<std::pair<std::int64_t, PlanProblem>> by_need;
  for (const PlanProblem& p : problems) by_need.emplace_back(solvers.of(p).needed_bytes(p), p);
  std::ranges::stable_sort(by_need, {}, &std::pair<std::int64_t, PlanProblem>::first);
  if (by_need.size() > kTried) by_need.resize(kTried);
  LeastMemory least;
  for (const auto& [needed, problem] : by_need) {
    TRY(Finalist finalist, price(solvers.of(problem).minimum_memory(problem)));
    const std::int64_t excess = excess_bytes(solvers.stages(), finalist);
    if (excess < least.excess_bytes) least = {excess, problem, std::move(finalist)};
  }
  return least;
}

}  // namespace orrery::search
