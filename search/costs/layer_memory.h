#pragma once
/// \file
/// What one layer does to a rank's memory, from its templates' deltas and peaks: the coefficients
/// of layer_program.h.
///
/// A stage in issue order (plan/program/memory.h, static_memory) holds its persistent state, the
/// stashes of the micro-batches in flight, and beside them what the running layer allocates. With F
/// micro-batches in flight and layers j of a stage:
///
///     m_j = persistent_j + F σ_j,
///     peak = Σ m_j + max(t_0,
///                        max_i (t_i - Σ_{j>i} σ_j) + gathered ahead,
///                        once-per-step peak - F Σ σ_j)
///     t = max(forward peak - σ, output gradient + backward (and reduction's) peak).
///
/// σ is what forward (with its gather) leaves behind, and its copies to the host do not take away;
/// layers after i have given theirs back when i's backward runs. Streams telescope: what a layer
/// hands on is the next one's input. The form never exceeds the static peak of the lowered Program,
/// and equals it where one strategy fills a stage, but for weights gathered ahead of layers that
/// differ, and for an update that is the peak as it holds the states of two layers; an answer
/// counts as fitting only by the exact bytes of costmodel::stage_peak_bytes.
#include <cstdint>

#include "costmodel/closed_form/closed_form.h"

namespace orrery::search {

struct LayerMemory {
  std::int64_t persistent_bytes = 0;
  // σ; about 0 for a head, which turns its input into a gradient
  std::int64_t stash_bytes = 0;
  std::int64_t forward_bytes = 0;   // forward peak - σ
  std::int64_t backward_bytes = 0;  // backward and reduction; output gradient not counted
  std::int64_t gathered_bytes = 0;  // by a gather ahead of its use
  std::int64_t step_bytes = 0;      // highest of the once-per-step templates
  // σ does not hold it: there until the next copy to the host begins. Not in the peak above, which
  // is the less for it.
  std::int64_t copied_bytes = 0;
};
LayerMemory memory_of(const costmodel::LayerCost& cost);
/// No more than `b` in anything.
bool dominates(const LayerMemory& a, const LayerMemory& b);

}  // namespace orrery::search
