#include "search/loop/moved_states.h"

#include "base/numbers.h"
#include "costmodel/closed_form/closed_form.h"

namespace orrery::search {
namespace {

using plan::States;

/// False: all of the rank's are there.
bool move_one(plan::Plan& plan, int rank) {
  for (int chunk = plan.virtual_stages; chunk-- > 0;) {
    std::vector<plan::LayerRun>& runs = plan.stages[as_index(plan.stage_of(rank, chunk))].runs;
    for (std::size_t i = runs.size(); i-- > 0;) {
      if (!runs[i].partition.empty() || runs[i].strategy.states == States::kHost) continue;
      plan::LayerRun one = runs[i];
      one.count = 1;
      one.strategy.states = States::kHost;
      --runs[i].count;
      runs.insert(runs.begin() + static_cast<std::ptrdiff_t>(i) + 1, one);
      plan = canonical(std::move(plan));
      return true;
    }
  }
  const bool has_ends = rank == 0 || rank == plan.head_rank();
  if (!has_ends || plan.vocabulary.states == States::kHost) return false;
  plan.vocabulary.states = States::kHost;
  return true;
}

}  // namespace

std::optional<plan::Plan> with_states_moved(costmodel::LayerCosts& costs, plan::Plan plan,
                                            const costmodel::MemoryLimit& budget) {
  for (;;) {
    const auto priced = costmodel::plan_cost(costs, plan);
    if (!priced) return std::nullopt;
    bool fits = true;
    for (int rank = 0; rank < plan.pipeline_degree(); ++rank) {
      if (priced->stage_peak_bytes[as_index(rank)] <= budget.of_stage(costs.cost(), plan, rank))
        continue;
      fits = false;
      if (!move_one(plan, rank)) return std::nullopt;
    }
    if (fits) return plan;
  }
}

}  // namespace orrery::search
