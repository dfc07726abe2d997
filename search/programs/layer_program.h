#pragma once
/// \file
/// The exact layer program of one pipeline stage whose layers are all of one type.
///
/// Problem. L equal layers, each runs with one option s: time per micro-batch n_s ("steady") and
/// per step y_s ("once"), in picoseconds; bytes: m_s (persistent + stash of the F micro-batches in
/// flight), the stash σ_s of one micro-batch, transients t_s and f_s beside them while its
/// backward and its forward run, weights g_s gathered while the layer before (forward) or behind it
/// (backward) still runs, u_s in the optimizer's step; a layout l(s). Neighbouring layers of
/// different layout pay a transition R(l, l') >= 0, the first and the last layer an entry and an
/// exit E(l), X(l), all per micro-batch. Layers of one layout stand together. With weights
/// a, b >= 0:
///
///     minimise    Σ_i [ a (n_{s_i} + R(l_{i-1}, l_i)) + b y_{s_i} ] + a (E(l_1) + X(l_L))
///     subject to  Σ_i m_{s_i} + max( t_0,
///                                    max_i (t_i + g_{i-1} - Σ_{j>i} σ_j),
///                                    max_i (f_i + g_{i+1} - Σ_{j>i} σ_j),
///                                    max(u_F, max_i u_i) - F Σ_j σ_j ) <= budget,
///
/// where i = 0 and L + 1 stand for the stage's other parts: t_0 behind all layers (a head), t_F and
/// f_F in front (an embedding, f with g_1), g_{L+1} of a head; g_0 = 0. The transient of layer i
/// stands beside the stashes of the layers before it only: its backward runs when those after it
/// have given theirs back (Galvatron-BMW, TKDE 2024, arXiv 2307.02031, checks Σ m + max t, which
/// is never less).
///
/// Recurrence it replaces (Galvatron, VLDB 2023, equation 1), on a grid of memory v:
///
///     f_i[v][s] = min_{s'} f_{i-1}[v - m_s][s'] + R(s', s) + c_s
///
/// Here neither grid nor layers are walked:
///
/// 1. Only canonical orders (layer_order.h): layers of one layout together, larger transients
///    first. So an answer is a vector of counts x_s, Σ x_s = L, and an order of its layouts;
///    transitions cost at least H(C), the shortest path through the set C of layouts used.
/// 2. Rounds over (T, γ), the largest t and the least g used: options with t_s <= T, g_s >= γ,
///    both reached. Linear conditions that hold in a round and mixes of them: memory_conditions.h.
/// 3. Without H each condition makes a knapsack; its linear relaxation is two neighbours a, b of
///    the lower convex hull of (m_s, c_s), with memory price λ = (c_b - c_a) / (m_a - m_b).
///    Reduced cost r_s = c_s - c_a + λ (m_s - m_a) >= 0, and every integer answer costs at least
///    LP + Σ x_s r_s + H(C).
/// 4. Depth-first over the counts of the other options while the bounds are below the incumbent; a
///    leaf splits what is left between a and b, as many on a as memory allows. All in 128-bit
///    integers scaled by m_a - m_b, no rounding.
///
/// The gap between bound and answer is about one swap of a layer, so effort hardly depends on L:
/// state = one node of step 4. Method and measurements: an own prototype, 7,824 brute-force cases
/// without mismatch; proved again in tests/oracle/search. Ties: the first found in canonical order
/// of options (the caller's) wins; the search is deterministic.
///
/// Worked example (LayerProgram.WorkedExample): L = 4, budget 30, options (n, m, σ, t) A = (1, 10,
/// 0, 0), B = (3, 4, 0, 2). Only A: 40 > 30. With both, T = 2: capacity 28, x_A = (28 - 16) / 6 =
/// 2: 2·10 + 2·4 + 2 = 30 fits, answer BBAA, time 8.
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace orrery::search {

/// Times and bytes that stand for "not possible". Sums of two stay in range.
inline constexpr std::int64_t kForbidden = std::numeric_limits<std::int64_t>::max() / 4;

struct LayerOption {
  std::int64_t steady_ps = 0;
  std::int64_t once_ps = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t stash_bytes = 0;
  std::int64_t transient_bytes = 0;
  std::int64_t forward_bytes = 0;
  std::int64_t neighbour_bytes = 0;
  std::int64_t step_bytes = 0;
  int layout = 0;
  bool operator==(const LayerOption&) const = default;
};

/// The last word on memory where the form above is a lower bound only. Asked for orders that fit by
/// the form, before they are accepted.
class MemoryCheck {
 public:
  virtual ~MemoryCheck() = default;
  /// True when this sequence of options (positions in LayerProblem::options) fits.
  virtual bool fits(const std::vector<std::int32_t>& sequence) = 0;
};

struct LayerProblem {
  int layers = 0;
  std::vector<LayerOption> options;
  int layouts = 1;                          // at most kMaxLayouts
  std::vector<std::int64_t> transition_ps;  // [from * layouts + to], zero diagonal; empty: all zero
  // [layout]; empty: zero; kForbidden: the first layer cannot lie so
  std::vector<std::int64_t> entry_ps;
  std::vector<std::int64_t> exit_ps;       // likewise for the last layer
  std::int64_t transient_floor_bytes = 0;  // t_0
  std::int64_t front_transient_bytes = 0;  // t_F
  std::int64_t front_forward_bytes = 0;    // f_F
  std::int64_t back_neighbour_bytes = 0;   // g_{L+1}
  std::int64_t front_step_bytes = 0;       // u_F: of the stage's other parts
  std::int64_t flight = 1;                 // F
  std::int64_t budget_bytes = 0;           // for layers and transients
  MemoryCheck* check = nullptr;            // none: the form is exact
};
inline constexpr int kMaxLayouts = 64;

/// Objective a Σ steady + b Σ once; both in [0, 2^21], not both 0.
struct Weights {
  std::int64_t steady = 1;
  std::int64_t once = 1;
};

/// One assignment of options to layers.
struct LayerAnswer {
  // option of each layer, layouts contiguous; equal ones together
  std::vector<std::int32_t> sequence;
  std::int64_t steady_ps = 0;  // with transitions, entry and exit
  std::int64_t once_ps = 0;
  std::int64_t memory_bytes = 0;  // left side of the constraint
  bool operator==(const LayerAnswer&) const = default;
};

/// Effort: shared by the calls of one search, so that a limit holds for the whole.
struct Effort {
  std::uint64_t states = 0;
  std::uint64_t limit = 0;  // of states; 0: none
  // states, and options that were looked through: what time goes with
  std::uint64_t ticks = 0;
  // the limit stopped some call: its answer has only its bound for a proof
  bool exhausted = false;
  [[nodiscard]] bool spend() {
    ++states;
    ++ticks;
    if (limit != 0 && states > limit) exhausted = true;
    return !exhausted;
  }
  /// Something was left out: a count vector fitted by the form and the check refused all its
  /// canonical orders, while another might fit; or there were more layouts than the program takes.
  /// What the answer claims to be least is so without it.
  bool undecided = false;
};

inline constexpr __int128 kNoAnswer = static_cast<__int128>(1) << 76;

/// Best answer with objective below `cutoff` (exclusive) and steady <= `steady_limit`, or nothing.
/// Exact unless effort is exhausted.
/// @pre layers >= 1, layouts <= kMaxLayouts, sizes of vectors as stated.
struct Bounded {
  std::optional<LayerAnswer> answer;
  __int128 bound =
      // lower bound of the objective by the linear relaxation; kNoAnswer when nothing fits even
      // fractionally
      0;
};
Bounded solve_layers(const LayerProblem& problem, const Weights& weights, __int128 cutoff,
                     Effort& effort, std::int64_t steady_limit = kForbidden);

/// The linear relaxation alone: a lower bound of the objective, kNoAnswer when nothing fits, and
/// the steady time of the fractional optimum (a hint, rounded). O(n log n) for each distinct g.
struct LayerBound {
  __int128 value = kNoAnswer;
  std::int64_t steady_ps = 0;
};
LayerBound layer_bound(const LayerProblem& problem, const Weights& weights);

/// All trade-offs between steady and total time: the answers not dominated in (steady, steady +
/// once), steady ascending, within limits. Found by the same search under `weights`, up to the
/// costliest corner between neighbours (two-phase method). Exact unless effort is exhausted; the
/// weights decide only the effort.
struct FrontierLimits {
  std::int64_t steady_ps = kForbidden;  // inclusive
  std::int64_t total_ps = kForbidden;   // exclusive
  __int128 weighted = kNoAnswer;        // exclusive, of the objective
};
std::vector<LayerAnswer> layer_frontier(const LayerProblem& problem, const Weights& weights,
                                        const FrontierLimits& limits, Effort& effort);

/// A lower bound of memory_bytes over all assignments; kForbidden when the layouts allow none.
/// Exact when one option is best in all of memory, transient and neighbours.
std::int64_t least_memory(const LayerProblem& problem);

}  // namespace orrery::search
