#pragma once
/// \file
/// Why a plan decides as it does: each of its decisions, and the best plan that decides otherwise.
///
/// A decision is undone by searching the same problem with that decision excluded and everything
/// else free again. So its worth is not what the plan would take with one field changed, which
/// often fits no memory, but what the best plan without it takes: the fastest of all that were
/// simulated (known_plans.h).
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "costmodel/cost_model.h"
#include "search/explain/known_plans.h"
#include "search/explain/simulated_plan.h"
#include "search/loop/planner.h"

namespace orrery::search {

/// A decision, and the space where it is taken otherwise. Decisions that the space leaves no choice
/// in are not listed.
struct Alternative {
  std::string made;       // "tp 1"
  std::string otherwise;  // "tp 2"
  Space space;
};

/// Twice and half as much tensor parallelism, as many stages, as many micro-batches; states sharded
/// or not; activations recomputed or not; sequence parallelism; how often gradients are reduced;
/// the pipeline's schedule.
std::vector<Alternative> alternatives(const plan::Plan& plan, const Space& space,
                                      std::int64_t devices);

/// Whether the plan's degrees, states, recomputation, reductions and schedule are of the space.
bool allows(const Space& space, const plan::Plan& plan, const model::ModelSpec& model,
            std::int64_t devices);

struct Decision {
  std::string made, otherwise;
  Space space;
  // fastest plan known that decides otherwise; none: nothing fits, or no plan divides
  std::optional<Comparison> best = {};
  // nothing fits: what the smallest lacks; 0: no plan divides model, batch and devices
  std::int64_t shortfall_bytes = 0;
};

/// Searches each decision's alternative, and with other numbers of stages a second decision undone:
/// what pipelines take is where closed form and simulator differ most, so more of them are
/// simulated. `known` gets the plans. Their prices are set when they are complete. Errors: those
/// of KnownPlans::search.
base::Result<std::vector<Decision>> decisions_of(const costmodel::CostModel& cost,
                                                 const plan::Plan& plan, const PlanRequest& problem,
                                                 KnownPlans& known);

}  // namespace orrery::search
