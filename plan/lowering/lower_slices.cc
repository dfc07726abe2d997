#include <algorithm>

#include "base/numbers.h"
#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

void gather_slices(Builder& b, const UnitUses& units, Ops& ops) {
  const auto use_of = [&](const Op& op) -> const UnitUse* {
    const auto found = std::ranges::find_if(units, [&](const UnitUse& u) {
      return u.sliced && op.weights &&
             (*op.weights == u.weights_forward || *op.weights == u.weights_backward);
    });
    return found == units.end() ? nullptr : &*found;
  };
  Ops gathers, out;  // of each user, in order
  for (const Op& op : ops) {
    const UnitUse* use = use_of(op);
    if (use == nullptr) continue;
    gathers.push_back(gather_op(b, *use, *op.weights));
    gathers.back().acquire = b.slice_pool();
    gathers.back().recomputed = op.recomputed;
  }
  if (gathers.empty()) return;
  // As with_prefetch places those of layers.
  const auto depth = as_index(b.context().prefetch_depth);
  std::size_t issued = 0, used = 0;
  for (Op& op : ops) {
    const bool uses = use_of(op) != nullptr;
    for (const std::size_t ahead = std::min(gathers.size(), used + depth + (uses ? 1 : 0));
         issued < ahead; ++issued)
      out.push_back(std::move(gathers[issued]));
    if (uses) {
      op.release = b.slice_pool();
      ++used;
    }
    out.push_back(std::move(op));
  }
  ops = std::move(out);
}

void reduce_slices(Builder& b, const UnitUses& units, Ops& ops) {
  Ops out;
  for (Op& op : ops) {
    const auto use = std::ranges::find_if(
        units, [&](const UnitUse& u) { return u.sliced && u.parts && op.gradients == u.gradient; });
    if (use != units.end()) append(out, zero_part_ops(b, *use));
    out.push_back(std::move(op));
    if (use != units.end()) append(out, sync_ops(b, *use, 0));
  }
  ops = std::move(out);
}

}  // namespace orrery::plan
