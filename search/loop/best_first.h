#pragma once
/// \file
/// The planner's loop: every (pipeline degree, devices of a stage, micro-batches, schedule,
/// vocabulary) problem, its bound, its solution, whoever solves it (solvers/solver.h).
///
/// Best first. A family (families.h) waits with the lower bound of what its layers compute; when
/// that is the least of all, it is sharpened by communication, then by memory, and waits again,
/// then makes way for its problems, one a vocabulary; a problem's bound is sharpened the same way
/// before the problem is solved. So vocabularies are priced and programs run only below the best
/// plan, and once the least bound is not below the best plan, that is proved. Problems that need an
/// incumbent wait for a plan to beat; the first of the others gives a quick one. Then come the
/// families that leave devices idle. Then groups (pp, devices, m, schedule) without a plan get
/// quick answers in the same order, for the simulator to judge: the best plan of each group, of
/// these the `top` best. The rest is cut and keeps its reason.
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "search/loop/candidates.h"
#include "search/loop/families.h"

namespace orrery::search {

struct LoopResult {
  std::vector<Finalist> finalists;  // cheapest first
  std::vector<Pruned> pruned;
  std::uint64_t states = 0, problems = 0;
  bool exhausted = false;
  std::int64_t bound_ps = 0;  // of the whole space, when there is a finalist or a known plan
  // of the problems that their cheapest bound does not put beyond the best plan
  std::vector<ProblemMultipliers> multipliers;
  std::int64_t multiplier_bound_ps = 0;  // what they and those cheapest bounds prove
  // Nothing fits: the plan of the least peak that was found; where stages have unlike memory, the
  // one that lacks least, as if every stage had the least memory.
  std::int64_t least_peak_bytes = 0;
  Finalist smallest;
};
/// And what their multipliers may take, beside it: the proof of what was found.
inline constexpr std::uint64_t kProofTicks = 2'000'000;
/// What runners-up are, one of each group: quick answers up to twice the best, or the cheapest of
/// the group's three most promising vocabularies, up to 1.25 times the best.
enum class RunnersUp : std::uint8_t { kQuick, kCheapest };
/// A few seconds: no request searches without end.
inline constexpr std::uint64_t kSearchTicks = 4'800'000;
/// How far a search goes. `problem_states`: effort limit of one problem; memory that is hard to
/// decide leaves it open then (Status::kBudget).
struct LoopOptions {
  RunnersUp runners_up = RunnersUp::kQuick;
  std::uint64_t problem_states = 300'000;
  std::uint64_t ticks = kSearchTicks;  // of the whole search
  // Ends at its limits without a plan too, and does not ask how little fits, or why others do not.
  bool gives_up = false;
};

/// @pre request is valid (planner.cc); `stages` is of its space and batch.
base::Result<LoopResult> search_best_first(StageModel& stages, const PlanRequest& request,
                                           LoopOptions options = {});

}  // namespace orrery::search
