#include "costmodel/closed_form/stage_memory.h"

#include <algorithm>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::costmodel {

using enum plan::PassKind;

plan::TemplateMemory after(const plan::TemplateMemory& first, const plan::TemplateMemory& then) {
  return {.delta_bytes = first.delta_bytes + then.delta_bytes,
          .peak_bytes = std::max(first.peak_bytes, first.delta_bytes + then.peak_bytes)};
}

namespace {

const plan::TemplateMemory& memory_of(const ChunkMemory& c, const plan::PassNode& n) {
  switch (n.kind) {
    case kForward: return c.forward;
    case kBackward: return n.last ? c.backward_last : c.backward;
    case kWeight: return n.last ? c.weight_last : c.weight;
  }
  ORRERY_CHECK(false, "pass kind out of range");
}

/// Bytes alive beside the persistent ones, pass after pass.
struct Walk {
  const StageMemory& stage;
  std::int64_t alive = 0, activation = 0, gradient = 0, peak = 0;

  void reach(std::int64_t bytes) { peak = std::max(peak, alive + activation + gradient + bytes); }
  void run(const plan::PassNode& n) {
    const ChunkMemory& c = stage.chunks[as_index(n.chunk)];
    const plan::TemplateMemory& m = memory_of(c, n);
    reach(m.peak_bytes);
    alive += m.delta_bytes;
    if (n.kind == kForward && c.sent_activation_bytes > 0) activation = c.sent_activation_bytes;
    if (n.kind == kBackward && c.sent_gradient_bytes > 0) gradient = c.sent_gradient_bytes;
  }
  void run(const std::vector<plan::PassNode>& passes) {
    for (const plan::PassNode& n : passes) run(n);
  }
  void turns(const std::vector<plan::PassNode>& body, std::int64_t count) {
    run(body);
    if (count == 1) return;
    const std::int64_t before = alive;
    run(body);
    if (count == 2) return;
    alive += (count - 3) * (alive - before);
    run(body);
  }
};

}  // namespace

std::int64_t peak_bytes(const StageMemory& stage, const std::vector<plan::PassNode>& order) {
  Walk walk{stage};
  walk.reach(stage.zero_gradient.peak_bytes);
  for (const plan::PassNode& n : order) {
    if (n.body.empty())
      walk.run(n);
    else
      walk.turns(n.body, (n.end - n.begin + n.step - 1) / n.step);
  }
  walk.reach(stage.update.peak_bytes);
  return stage.persistent_bytes + walk.peak;
}

}  // namespace orrery::costmodel
