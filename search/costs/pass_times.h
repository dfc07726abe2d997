#pragma once
#include <cstdint>

#include "costmodel/closed_form/closed_form.h"

namespace orrery::search {

/// Times of costmodel::LayerCost that add up over layers, in ps.
struct PassTimes {
  std::int64_t forward_ps = 0, backward_ps = 0, backward_sync_ps = 0, weight_ps = 0,
               weight_sync_ps = 0;
  std::int64_t start_ps = 0;   // zeroing, and what gathers add to the first forward
  std::int64_t update_ps = 0;  // without zeroing

  void add(const costmodel::LayerCost& c, std::int64_t count = 1) {
    forward_ps += count * c.forward_ps;
    backward_ps += count * c.backward_ps;
    backward_sync_ps += count * c.backward_sync_ps;
    weight_ps += count * c.weight_ps;
    weight_sync_ps += count * c.weight_sync_ps;
    start_ps += count * c.start_ps();
    update_ps += count * (c.update_ps - c.zero_gradient_ps);
  }
};

/// F + B + W of one micro-batch.
inline std::int64_t steady_of(const costmodel::LayerCost& c) {
  return c.forward_ps + c.backward_ps + c.weight_ps;
}
/// Once a step, with what it draws where energy is minimised.
inline std::int64_t sync_of(const costmodel::LayerCost& c) {
  return c.backward_sync_ps - c.backward_ps;
}
/// Without: of what ranks do side by side the longest counts, but the energy of all.
inline std::int64_t sync_time_of(const costmodel::LayerCost& c) {
  return c.last_backward_ps() - c.backward_ps;
}

}  // namespace orrery::search
