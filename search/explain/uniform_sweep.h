#pragma once
/// \file
/// Every plan that gives all layers one strategy and all stages equally many of them, each one
/// priced: what tools that sweep a grid do (Calculon, Isaev et al., SC 2023), and the yardstick for
/// what a choice per layer and uneven stages are worth.
///
/// Costs of layers are hoisted out of the loops; a plan is then two passes over its stages, the
/// formula of costmodel/closed_form/closed_form.h:
///
///     s_i = max(Z_i, s_{i-1} + F_{i-1}) + f_i,     e_i = e_{i+1} + b_i + B'_i,
///     e_p = s_{p-1} + F_{p-1} + (m - 1) max_i N_i, step = max_i (e_i + U_i)
///
/// so `step_ps` equals costmodel::plan_cost to the picosecond. Memory is layer_memory.h's form, a
/// lower bound; the fastest plan that passes it is confirmed by costmodel::stage_peak_bytes before
/// it counts. 1F1B only (GPipe's closed form is never shorter).
/// O(problems · strategies · stages).
#include <cstdint>
#include <optional>

#include "costmodel/closed_form/layer_costs.h"
#include "plan/program/plan.h"
#include "search/loop/planner.h"

namespace orrery::search {

struct UniformSweep {
  std::uint64_t evaluated = 0;     // plans priced, none skipped
  std::uint64_t fitting = 0;       // of these within memory, by the form
  std::optional<plan::Plan> best;  // fastest that fits by exact bytes
  std::int64_t best_ps = 0;
};

/// Nothing for a model with blocks of several kinds. `budget_bytes`: what the Program's buffers may
/// take on a device. @pre the request is one that find_plan takes.
UniformSweep sweep_uniform(costmodel::LayerCosts& costs, const PlanRequest& request,
                           std::int64_t budget_bytes);

}  // namespace orrery::search
