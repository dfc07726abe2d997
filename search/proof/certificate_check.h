#pragma once
/// \file
/// Checks answers without trusting the search: nothing here includes or calls what found them (the
/// headers it sees are data). A claim is recomputed from the input, number by number.
///
/// For an instance: sums of the chosen options, the budget, and the Lagrangian bound of the stated
/// multiplier λ = e / d,
///
///     L(λ) = ( min over all choices of Σ_i [ d time_i + d R_i + e memory_i ] - e budget ) / d,
///
/// by the plain recurrence over (layer, option), in 128 bits that are checked for overflow. Whoever
/// trusts this recurrence need not trust the search: no choice within the budget is faster than
/// L(λ). Where the bound lies below the time, the rest (`proved_ps`) is the search's word.
///
/// For a plan: the cost by costmodel::plan_cost; the memory of every stage as the static peak of
/// the lowered Program, a second way to it; that the plan is one of the stated space; what the
/// stated multipliers prove of that whole space (multiplier_bound.h), and what partitions of its
/// layers compute at least (partition_bound.h). What lies between this bound
/// and the cost, or the larger bound that the search states, is the search's word.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "base/result.h"
#include "costmodel/cost_model.h"
#include "plan/program/plan.h"
#include "search/proof/certificate.h"
#include "search/table/instance.h"
#include "search/table/instance_program.h"

namespace orrery::search {

struct CheckReport {
  std::int64_t cost_ps = 0;  // recomputed
  // of the choice; of a plan by stage, framework bytes included
  std::vector<std::int64_t> memory_bytes;
  std::int64_t limit_bytes = 0;  // of a plan on devices of several kinds: the least of its stages
  std::vector<std::int64_t> stage_limit_bytes;  // where they differ
  // recomputed from the multipliers; nothing: the claim has none
  std::optional<std::int64_t> bound_ps;
  std::vector<std::string> faults;  // one sentence each; empty: the claim holds
  std::size_t too_large = 0;        // of them: a stage that needs more than the limit
  // false: one of the faults is about it
  bool cost_holds = true, memory_holds = true, bound_holds = true, gap_holds = true;
  [[nodiscard]] bool holds() const { return faults.empty(); }
  /// What was claimed is true, and it does not fit.
  [[nodiscard]] bool only_too_large() const {
    return !faults.empty() && faults.size() == too_large;
  }
  /// (cost - bound) / cost.
  [[nodiscard]] double gap() const { return real(cost_ps - bound_ps.value_or(0)) / real(cost_ps); }
  void fault(bool CheckReport::*item, std::string text) {
    this->*item = false;
    faults.push_back(std::move(text));
  }
};

/// @pre instance was read by read_instance (its totals are bounded).
CheckReport check_solution(const Instance& instance, const Solution& claim);

/// What somebody says of a plan; 0 and empty: nothing said.
struct PlanClaim {
  std::int64_t cost_ps = 0, bound_ps = 0;
  std::vector<std::int64_t> stage_peak_bytes = {};
  std::int64_t memory_limit_bytes = 0;  // per device; 0: the device's own
  std::int64_t multiplier_bound_ps = 0;
  std::optional<double> gap = {}, multiplier_gap = {};
  std::optional<std::int64_t> partition_bound_ps = {};
  std::vector<SpaceProof> proofs = {};
  costmodel::Objective objective = costmodel::Objective::kTime;
};
/// In the plan's order of devices, whatever the ranks of `cost` count. Errors: those of
/// plan::lower, costmodel::plan_cost and topologies::in_device_order; of energy, those of
/// costmodel::MachinePower::of.
base::Result<CheckReport> check_plan(const costmodel::CostModel& cost, const plan::Plan& plan,
                                     const PlanClaim& claim);

}  // namespace orrery::search
