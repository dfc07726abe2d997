#pragma once
/// \file
/// The exact program of a pipeline: one layer program per stage, coupled by the slowest stage and
/// by layouts at boundaries.
///
/// Cost of a plan with m micro-batches (Galvatron, VLDB 2023, section 3.3;
/// ../costmodel/closed_form.h):
///
///     Σ_i A_i + (m - 1) max_i N_i + Σ_i S_i(l_i),   A_i = N_i + Y_i,
///
/// N_i time of one micro-batch in stage i, Y_i what the step adds once, S_i the transfer behind
/// stage i in the layout l_i of its last layer. Stage i + 1 receives in that layout and changes it
/// itself, so its entry costs are R(l_i, .).
///
/// Recurrence: P_i[l][k] = set of pairs (max N, Σ A + S) not dominated, over stages 0..i with k
/// layers so far, the last layer in l, where the frontier is layer_program.h's:
///
///     P_i[l][k] = nondominated { (max(τ, N), c + A + S_i(l)) :
///                                (τ, c) in P_{i-1}[e][k - n], (N, A) in frontier_i(e, l, n) }
///
/// Answer: the least c + (m - 1) τ in P_{p-1} with all layers. A label dies when one of two lower
/// bounds reaches the incumbent, and frontiers end where that bound does; the second is Lagrangian:
///
///     c + Σ_{rest} min A_i + (m - 1) max(τ, least N of the rest)
///     c + (m - 1) τ Σ_{done} w_i + Σ_{rest} min (A_i + (m - 1) w_i N_i)
///
/// Bounds, weights and the options that may stand at all: pipeline_bound.h. State = label, and the
/// states of the layer programs. Optimal over layer counts, options, boundary layouts.
///
/// Worked example (PipelineProgram.WorkedExample): two stages of one layer, m = 3, no memory limit,
/// options (n, y) = (4, 0) and (3, 2) in both stages: (3, 2) twice costs 5 + 5 + 2·3 = 16, (4, 0)
/// twice 4 + 4 + 2·4 = 16, mixed 4 + 5 + 2·4 = 17.
#include <cstdint>
#include <optional>
#include <vector>

#include "base/numbers.h"
#include "search/programs/layer_program.h"

namespace orrery::search {

struct PipelineStage {
  /// Options, transitions, memory; `layers`, `entry_ps` (but of stage 0) and `exit_ps` (but of the
  /// last) are set by the program.
  LayerProblem layers;
  int fewest = 1, most = 1;    // layers that the stage may have
  std::int64_t steady_ps = 0;  // embedding, head: added to N
  std::int64_t once_ps = 0;    // added to Y
  // [layout] S_i of the transfer behind this stage; last stage: empty
  std::vector<std::int64_t> send_ps;
  // What holds the stage itself, part of N: empty, or
  // [layout in which it receives] of the activation; not for the first stage
  std::vector<std::int64_t> receive_ps;
  // [layout of the last layer] of the gradient; not for the last stage
  std::vector<std::int64_t> return_ps;
  // [layout in which the stage receives] held all along; empty: none
  std::vector<std::int64_t> arrival_bytes;
  std::vector<std::int64_t> departure_bytes;  // [layout of the last layer] likewise
};

/// The last word on the memory of a stage (layer_program.h, MemoryCheck).
class StageCheck {
 public:
  virtual ~StageCheck() = default;
  /// True when the stage fits with these options, receiving in layout `entry` (-1: the first
  /// stage).
  virtual bool fits(std::size_t stage, int entry, const std::vector<std::int32_t>& options) = 0;
};
/// Changes of layout, priced when first asked for.
class LayoutChanges {
 public:
  virtual ~LayoutChanges() = default;
  virtual std::int64_t change_ps(std::size_t stage, int from, int to) = 0;
};

struct PipelineProblem {
  std::vector<PipelineStage> stages;
  int layers = 0;  // in all
  std::int64_t micro_batches = 1;
  StageCheck* check = nullptr;       // none: the form of memory is exact
  LayoutChanges* changes = nullptr;  // none: transition_ps of the stages' layers
  [[nodiscard]] std::int64_t change_ps(std::size_t stage, int from, int to) const {
    if (changes != nullptr) return changes->change_ps(stage, from, to);
    const LayerProblem& p = stages[stage].layers;
    return p.transition_ps.empty() ? 0 : p.transition_ps[as_index(from * p.layouts + to)];
  }
};

struct PipelineAnswer {
  std::int64_t cost_ps = 0;
  std::vector<LayerAnswer> stages;  // without the stages' own constants
};

/// Lower bound by linear relaxations, no search; kForbidden when some stage fits not even
/// fractionally. O(stages).
std::int64_t pipeline_bound(const PipelineProblem& problem);

/// A good answer below `cutoff_ps` with little effort: one layout everywhere, the layer programs
/// cut short. No proof.
std::optional<PipelineAnswer> quick_pipeline(const PipelineProblem& problem, std::int64_t cutoff_ps,
                                             Effort& effort);

/// Best answer below `cutoff_ps`, or nothing. Exact unless effort is exhausted.
std::optional<PipelineAnswer> solve_pipeline(const PipelineProblem& problem, std::int64_t cutoff_ps,
                                             Effort& effort);

}  // namespace orrery::search
