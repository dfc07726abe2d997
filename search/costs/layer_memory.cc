#include "search/costs/layer_memory.h"

#include <algorithm>

namespace orrery::search {

LayerMemory memory_of(const costmodel::LayerCost& cost) {
  LayerMemory memory;
  memory.persistent_bytes = cost.persistent_bytes;
  memory.stash_bytes = cost.stash_bytes;
  memory.forward_bytes = std::max<std::int64_t>(0, cost.forward.peak_bytes - cost.stash_bytes);
  memory.backward_bytes =
      std::max(cost.backward.peak_bytes, cost.backward.delta_bytes + cost.sync.peak_bytes);
  memory.gathered_bytes =
      std::max(cost.gather_forward.delta_bytes, cost.gather_backward.delta_bytes);
  memory.copied_bytes = cost.copied_bytes;
  memory.step_bytes = std::max(cost.zero_gradient.peak_bytes, cost.update.peak_bytes);
  return memory;
}

bool dominates(const LayerMemory& a, const LayerMemory& b) {
  return a.persistent_bytes <= b.persistent_bytes && a.stash_bytes <= b.stash_bytes &&
         a.forward_bytes <= b.forward_bytes && a.backward_bytes <= b.backward_bytes &&
         a.gathered_bytes <= b.gathered_bytes && a.step_bytes <= b.step_bytes &&
         a.copied_bytes <= b.copied_bytes;
}

}  // namespace orrery::search
