#pragma once
/// \file
/// Where no plan is known: the one of the least peak, by plans of little memory, exact by
/// plan_cost.
#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "search/loop/candidates.h"
#include "search/solvers/solvers.h"

namespace orrery::search {

using PricePlan = std::function<base::Result<Finalist>(plan::Plan)>;

/// By how many bytes the stage that lacks most exceeds its memory; below 0: what it has left.
std::int64_t excess_bytes(StageModel& stages, const Finalist& finalist);

struct LeastMemory {
  std::int64_t excess_bytes = kForbidden;  // kForbidden: there is no plan
  PlanProblem problem;
  Finalist finalist;
};
/// Of many problems those of the smallest micro-batches are looked at. An interleaved or ZB-H1 plan
/// holds no fewer micro-batches than 1F1B's: asked only where that is not allowed (`plain`).
base::Result<LeastMemory> least_memory(Solvers& solvers, std::vector<PlanProblem> problems,
                                       bool plain, const PricePlan& price);

}  // namespace orrery::search
