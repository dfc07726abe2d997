#pragma once
/// \file
/// Checks answers without trusting the search: nothing here includes or calls what found them (the headers it sees are
/// data). A claim is recomputed from the input, number by number.
///
/// For an instance: sums of the chosen options, the budget, and the Lagrangian bound of the stated multiplier λ = e /
/// d,
///
///     L(λ) = ( min over all choices of Σ_i [ d time_i + d R_i + e memory_i ] - e budget ) / d,
///
/// by the plain recurrence over (layer, option), in 128 bits that are checked for overflow. Whoever trusts this
/// recurrence need not trust the search: no choice within the budget is faster than L(λ). Where the bound lies below
/// the time, the rest (`proved_ps`) is the search's word.
///
/// For a plan: the cost by costmodel::plan_cost, and the memory of every stage as the static peak of the lowered
/// Program, a second way to it.
///
/// To come with a certificate of whole pipelines: its bound is a sum over stages of this same minimum, each stage with
/// its multiplier and weights; the claim then carries them and check_plan compares.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "costmodel/cost_model.h"
#include "plan/plan.h"
#include "search/instance.h"
#include "search/instance_program.h"

namespace orrery::search {

struct CheckReport {
  std::int64_t cost_ps = 0;                // recomputed
  std::vector<std::int64_t> memory_bytes;  // of the choice; of a plan by stage, framework bytes included
  std::int64_t limit_bytes = 0;
  std::optional<std::int64_t> bound_ps;  // recomputed; nothing: the claim has none
  std::vector<std::string> faults;       // one sentence each; empty: the claim holds
  [[nodiscard]] bool holds() const { return faults.empty(); }
};

/// @pre instance was read by read_instance (its totals are bounded).
CheckReport check_solution(const Instance& instance, const Solution& claim);

/// What somebody says of a plan; 0 and empty: nothing said.
struct PlanClaim {
  std::int64_t cost_ps = 0, bound_ps = 0;
  std::vector<std::int64_t> stage_peak_bytes;
  std::int64_t memory_limit_bytes = 0;  // per device; 0: the device's own
};
/// Errors: those of plan::lower and costmodel::plan_cost.
base::Result<CheckReport> check_plan(const costmodel::CostModel& cost, const plan::Plan& plan, const PlanClaim& claim);

}  // namespace orrery::search
