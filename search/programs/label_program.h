#pragma once
/// \file
/// The exact layer program by labels: layers of any types, transitions that need not be metric.
///
/// minimise Σ_i [ c_i(s_i) + R(l(s_{i-1}), l(s_i)) ] + E + X under the memory constraint of
/// layer_program.h, with one table of options per layer and layers in the given order.
///
/// Recurrence (the published one is layer_program.h's, on a grid): F_i[s] = set of nondominated
/// (cost c, forward memory x, need q, what stays k, step u) over the sequences that end in option
/// s, where q is the highest instant of the layers so far, seen from the full forward memory: with
/// s' the option before s,
///
///     c' = c + R(l', l) + c_i(s),  x' = x + m_i(s),  k' = k + m_i(s) - F σ_i(s),  u' = max(u,
///     u_i(s)), q' = max(max(q, x + f_{i-1}(s') + g_i(s)) + m_i(s) - σ_i(s), x' + t_i(s) +
///     g_{i-1}(s')),
///
/// starting from x = 0, q = t_F, f_0 = f_F, g_0 = 0, and at the end q <= budget, x + max(t_0, f_L +
/// g_{L+1}) <= budget, k + u <= budget. State = label; order: layers forward. A label dies when
/// what must still come takes x or q over the budget, or when its cost plus a lower bound of the
/// rest (Lagrangian: min_s c + λ m, at several λ) reaches the incumbent. Worst case exponential in
/// layers, in practice a few thousand labels. Optimal over all sequences.
///
/// Worked example (LabelProgram.WorkedExample): two layers, options (c, m): first (1, 8) or (4, 2),
/// second (1, 6) or (2, 3), same layout, no transients, budget 11: (1, 8) + (2, 3) costs 3 and
/// takes 11.
#include <cstdint>
#include <optional>
#include <vector>

#include "search/programs/layer_program.h"

namespace orrery::search {

struct LabelProblem {
  std::vector<std::vector<LayerOption>> layers;  // options of each layer; layouts shared
  int layouts = 1;
  std::vector<std::int64_t> transition_ps;  // as in LayerProblem
  std::vector<std::int64_t> entry_ps, exit_ps;
  std::int64_t transient_floor_bytes = 0;
  std::int64_t front_transient_bytes = 0, front_forward_bytes = 0, front_step_bytes = 0;
  std::int64_t back_neighbour_bytes = 0;
  std::int64_t flight = 1;
  std::int64_t budget_bytes = 0;
};
LabelProblem to_labels(const LayerProblem& problem);

/// Best answer with objective below `cutoff`, or nothing. Exact unless effort is exhausted.
std::optional<LayerAnswer> solve_labels(const LabelProblem& problem, const Weights& weights,
                                        __int128 cutoff, Effort& effort);

}  // namespace orrery::search
