#pragma once
/// \file
/// The exact program of an instance: the fastest choice of options within the memory budget.
///
/// minimise Σ_i time_i(s_i) + Σ_i R_i(s_i, s_{i+1}) subject to Σ_i memory_i(s_i) <= budget. R is
/// any table: no metric, no zero diagonal is assumed.
///
/// Bounds: the Lagrangian of instance_dual.h at its best price λ and at six prices around it.
/// P_λ(i, c) bounds what the layers before i cost when the option at i is of class c. Labels grow
/// from the last layer to the first:
///
///     F_i[c] = nondominated (time t, memory m) of the layers >= i whose option at i is of class c
///            = ⋃_{s in c, c'} F_{i+1}[c'] + (time_i(s) + R_i(s, c'), memory_i(s)),
///
/// without those for which m + least memory before is over the budget, or
/// d t + e m + P_λ(i, c) - e budget > d U for one of the prices λ = e / d. U deepens from the
/// bound in steps that double, up to the best answer known: an answer of cost <= U is the optimum,
/// since all cheaper ones were kept. Answers on the way come from completing every label by the
/// paths of its prices. State = label; order: layers backward; worst case exponential in layers, in
/// practice the gap is about one change of an option and few labels fit into it. Optimal over all
/// choices.
///
/// Layers in a few runs of equal ones go to instance_runs.h, whose effort hardly depends on their
/// number.
///
/// Ties: least time, then least memory, then the smallest options from the first layer on (runs:
/// then the first that instance_runs.h finds). The same answer everywhere.
///
/// Worked example (InstanceProgram.WorkedExample): two layers, options (time, memory) (1, 8), (4,
/// 2) and (1, 6), (2, 3), budget 11: (1, 8) and (2, 3), time 3, memory 11; λ = 1/3 proves 3.
#include <cstdint>
#include <vector>

#include "search/status.h"
#include "search/table/instance.h"

namespace orrery::search {

/// Price of memory λ >= 0 in picoseconds per byte, cancelled.
struct Multiplier {
  std::int64_t numerator = 0, denominator = 1;
  bool operator==(const Multiplier&) const = default;
};

struct Solution {
  Status status = Status::kInfeasible;
  OptionPath choices;        // option of each layer; empty when infeasible
  std::int64_t time_ps = 0;  // with transitions
  std::int64_t memory_bytes = 0;
  // Certificate: certificate_check.h recomputes it.
  Multiplier multiplier;
  std::int64_t bound_ps = 0;            // L(λ), rounded up: no answer is faster
  std::int64_t proved_ps = 0;           // lower bound that the search proved: time_ps when optimal
  double gap = 0;                       // (time - bound) / time
  std::int64_t least_memory_bytes = 0;  // of any choice: when infeasible the budget is short of it
  std::uint64_t states = 0;             // labels made and nodes visited
};

/// `max_states` = 0: no limit. When it is reached: status kBudget, the best answer known and what
/// is proved (kOptimal when both are equal).
Solution solve_instance(const Instance& instance, std::uint64_t max_states = 0);

/// Schema orrery.solution/1 (docs/schemas.md).
base::Json to_json(const Solution& solution, const Instance& instance);
/// Reads that schema strictly; choices by their positions. Whether the answer is right is
/// certificate_check.h's question. Errors: all faults of the file, each at line:column.
base::Result<Solution> read_solution(const base::Node& root);

}  // namespace orrery::search
