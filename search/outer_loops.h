#pragma once
/// \file
/// The outer loops of the planner: every (pipeline degree, devices of a stage, micro-batches, schedule, vocabulary) problem, its bound, its
/// solution.
///
/// Problems are taken in the order of their lower bounds, those of interleaved 1F1B and ZB-H1 once there is a plan to beat. One whose bound is below
/// the best plan so far is solved exactly, so the best plan is proved. Then come the problems that leave devices idle: all p stages of d devices with
/// p d below the cluster's number, so that more devices are never slower; what their layers cost at least excludes most before embedding
/// and head are priced. Then groups (pp, devices, m, schedule) get quick answers in the same order, for the simulator to judge: the
/// best plan of each group, of these the `top` best. The rest is cut and keeps its reason.
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "search/candidates.h"
#include "search/stage_model.h"

namespace orrery::search {

struct LoopResult {
  std::vector<Finalist> finalists;  // cheapest first
  std::vector<Pruned> pruned;
  std::uint64_t states = 0, problems = 0;
  bool exhausted = false;
  std::int64_t bound_ps = 0;  // of the whole space, when there is a finalist
  std::vector<ProblemMultipliers> multipliers;  // of the problems that their cheapest bound does not put beyond the best plan
  std::int64_t multiplier_bound_ps = 0;         // what they and those cheapest bounds prove
  // Nothing fits: the plan of the least peak that was found.
  std::int64_t least_peak_bytes = 0;
  Finalist smallest;
};
/// @pre request is valid (planner.cc). `budget_bytes`: what the Program's buffers may take on a device.
base::Result<LoopResult> run_loops(const costmodel::CostModel& cost, const PlanRequest& request,
                                   std::int64_t budget_bytes);

}  // namespace orrery::search
