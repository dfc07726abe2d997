#include "costmodel/stage_memory.h"

#include <algorithm>

namespace orrery::costmodel {

plan::TemplateMemory after(const plan::TemplateMemory& first, const plan::TemplateMemory& then) {
  return {.delta_bytes = first.delta_bytes + then.delta_bytes,
          .peak_bytes = std::max(first.peak_bytes, first.delta_bytes + then.peak_bytes)};
}

std::int64_t peak_bytes(const StageMemory& s) {
  const std::int64_t k = s.in_flight, m = s.micro_batches, stash = s.forward.delta_bytes;
  std::int64_t peak = std::max<std::int64_t>(0, s.zero_gradient.peak_bytes);
  for (const std::int64_t j : {k - 1, k}) {
    if (j >= m) continue;
    const std::int64_t start = std::min(j, k - 1) * stash + (j >= 1 ? s.held_activation_bytes : 0) + (j >= k ? s.held_gradient_bytes : 0);
    peak = std::max(peak, start + s.forward.peak_bytes);
  }
  for (const std::int64_t i : {std::int64_t{0}, std::int64_t{1}, m - 1}) {
    if (i >= m) continue;
    const std::int64_t start = std::min(k, m - i) * stash + s.held_activation_bytes + (i >= 1 ? s.held_gradient_bytes : 0);
    peak = std::max(peak, start + (i == m - 1 ? s.backward_last : s.backward).peak_bytes);
  }
  peak = std::max(peak, s.held_activation_bytes + s.held_gradient_bytes + s.update.peak_bytes);
  return s.persistent_bytes + peak;
}

}  // namespace orrery::costmodel
