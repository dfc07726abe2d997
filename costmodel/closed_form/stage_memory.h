#pragma once
/// \file
/// Peak memory of a pipeline rank, from what its passes do to memory.
///
/// A pass is a list of templates; each changes the bytes alive by delta and reaches `peak` above
/// its start. What a send reads stays alive until the next send of its stream, so beside the deltas
/// a rank holds X bytes, what its last forward sent, and D, what its last backward sent; of each
/// arm of a V. Likewise C, what its last copy to the host takes away when the next one begins, in
/// the midst of a forward or of the update. Passes run in the order of plan::pass_order:
///
///   pass n starts with  Σ_{k<n} delta_k + X + D + C,
///                       peak = persistent + max over passes of (start + peak of the pass)
///
/// and the update starts behind the last of them. A loop of passes begins every turn but the first
/// with the same X and D, and each turn adds the same bytes, so the highest turn is the first, the
/// second or the last: the work does not grow with micro-batches. Example: GPipe keeps S bytes per
/// forward, so its first backward starts with m S + X; 1F1B on the last stage never holds more than
/// S.
#include <cstdint>
#include <vector>

#include "plan/program/memory.h"
#include "plan/program/schedule.h"

namespace orrery::costmodel {

/// A forward, or the update, before its first copy to the host begins and behind that; all is
/// before where there is none. What the last copy takes away is taken off delta.
struct PassMemory {
  plan::TemplateMemory before, behind;
  std::int64_t copied_bytes = 0;  // by the last copy
};

/// Passes of one stage of the rank.
struct ChunkMemory {
  PassMemory forward;
  plan::TemplateMemory backward, backward_last, weight, weight_last;
  // 0: nothing is sent, and what an earlier pass sent stays
  std::int64_t sent_activation_bytes = 0, sent_gradient_bytes = 0;
};

struct StageMemory {
  std::int64_t persistent_bytes = 0;
  plan::TemplateMemory zero_gradient;  // once, before all passes
  PassMemory update;                   // behind them
  std::vector<ChunkMemory> chunks;
  bool v_shaped = false;  // chunks are arms of a V, each with streams of its own
};

std::int64_t peak_bytes(const StageMemory& stage, const std::vector<plan::PassNode>& order);

/// `then` after `first`.
plan::TemplateMemory after(const plan::TemplateMemory& first, const plan::TemplateMemory& then);

}  // namespace orrery::costmodel
