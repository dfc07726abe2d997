#include "search/layer_memory.h"

#include <algorithm>

namespace orrery::search {

LayerMemory memory_of(const costmodel::LayerCost& cost) {
  LayerMemory memory;
  memory.persistent_bytes = cost.persistent_bytes;
  memory.stash_bytes = cost.forward.delta_bytes;
  memory.forward_bytes = std::max<std::int64_t>(0, cost.forward.peak_bytes - cost.forward.delta_bytes);
  memory.backward_bytes = std::max(cost.backward.peak_bytes, cost.backward.delta_bytes + cost.sync.peak_bytes);
  memory.gathered_bytes = std::max(cost.gather_forward.delta_bytes, cost.gather_backward.delta_bytes);
  memory.gathered_backward_bytes = cost.gather_backward.delta_bytes;
  memory.step_bytes = std::max(cost.zero_gradient.peak_bytes, cost.update.peak_bytes);
  return memory;
}

}  // namespace orrery::search
