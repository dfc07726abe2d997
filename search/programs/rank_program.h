#pragma once
/// \file
/// The exact program of interleaved 1F1B and ZB-H1, whose cost is no sum over stages: pipeline
/// ranks one after another, labels in several coordinates.
///
/// Problem. p ranks share L layers; rank i takes one choice: n_i layers with one option. With the
/// symbols of costmodel/closed_form/closed_form.h, f_i the wait for the first activation, the
/// choice says Z_i and U_i (zeroing, update), F_i (forward through the rank's first stage),
/// D_i = b_i + B'_i (the way back through it), C_i (a cycle), S_i (what R adds by its worst rank),
/// X_i (bubble that ZB-H1 fills):
///
///     minimise  a_p + c · max C_i + max S_i + T_p - Σ X_i + max X_i,      Σ n_i = L
///     a_1 = Z_1 + f_1 + F_1,   a_i = max(a_{i-1}, Z_i) + f_i + F_i
///     T_1 = U_1 + D_1,         T_i = max(T_{i-1}, U_i) + D_i
///
/// That is plan_cost of interleaved 1F1B with c = m, S the synchronisation of a rank's stages
/// behind its first, X = 0, and F + B of its first stage taken off F of the last rank; and of ZB-H1
/// with m >= p, c = m - 1, S = W', X = min(F, B, W): the p - 1 smallest are all but the largest.
///
/// Recurrence: P_i[k] = set of labels (a, T, max C, max S, Σ X, max X) of ranks 1..i with k
/// layers, of which none is beaten: by a label that is no worse in max C, max S, max X, and whose
/// lead in a + T - Σ X holds whatever follows (a rank's Z or U may swallow a lead in a or T). A
/// label dies where its bound reaches the cutoff:
///
///     a + T - Σ X + Σ rest of least (f + F + D - X)
///       + c max(C, rest) + max(S, rest) + max(X, rest)
///
/// State = label. Optimal over the choices given: what does not fit a rank's memory is not among
/// them. Complexity: O(p L choices labels).
///
/// Worked example (RankProgram.WorkedExample): p = 2, L = 3, c = 2, one option with F = 1, C = 3,
/// D = 2 per layer: (1, 2) layers cost 1 + 2 + 2·6 + 2 + 4 = 21.
#include <cstdint>
#include <optional>
#include <vector>

#include "search/programs/layer_program.h"

namespace orrery::search {

/// What a rank may do. Times in ps.
struct RankChoice {
  int layers = 0;
  std::int32_t option = 0;       // the caller's name
  std::int64_t zero_ps = 0;      // Z
  std::int64_t update_ps = 0;    // U
  std::int64_t forward_ps = 0;   // f + F; of the last rank possibly below 0
  std::int64_t backward_ps = 0;  // D
  std::int64_t cycle_ps = 0;     // C
  std::int64_t tail_ps = 0;      // S
  std::int64_t filled_ps = 0;    // X
};

struct RankProblem {
  std::vector<std::vector<RankChoice>> ranks;  // [rank] choices
  int layers = 0;                              // in all
  std::int64_t cycles = 1;                     // c
};

struct RankAnswer {
  std::int64_t cost_ps = 0;
  std::vector<RankChoice> choices;  // [rank]
};

/// Cheapest answer below `cutoff_ps`, or nothing. Exact unless effort is exhausted; ties: the first
/// in the order of choices.
/// @pre at least one rank.
std::optional<RankAnswer> solve_ranks(const RankProblem& problem, std::int64_t cutoff_ps,
                                      Effort& effort);

}  // namespace orrery::search
