#include "costmodel/closed_form/stage_memory.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/numbers.h"
#include "costmodel/closed_form/closed_form.h"

namespace orrery::costmodel {

using enum plan::PassKind;

plan::TemplateMemory after(const plan::TemplateMemory& first, const plan::TemplateMemory& then) {
  return {.delta_bytes = first.delta_bytes + then.delta_bytes,
          .peak_bytes = std::max(first.peak_bytes, first.delta_bytes + then.peak_bytes)};
}

namespace {

const plan::TemplateMemory& memory_of(const ChunkMemory& c, const plan::PassNode& n) {
  switch (n.kind) {
    case kForward: return c.forward.before;
    case kBackward: return n.last ? c.backward_last : c.backward;
    case kWeight: return n.last ? c.weight_last : c.weight;
  }
  ORRERY_CHECK(false, "pass kind out of range");
}

/// Bytes alive beside the persistent ones, pass after pass.
struct Walk {
  const StageMemory& stage;
  struct Sent {
    std::int64_t activation = 0, gradient = 0;
  };
  std::int64_t alive = 0, peak = 0, copied = 0;
  std::array<Sent, 2> sent{};  // by streams

  void reach(std::int64_t bytes) {
    for (const Sent& s : sent) bytes += s.activation + s.gradient;
    peak = std::max(peak, alive + copied + bytes);
  }
  void behind_copy(const PassMemory& m) {
    copied = 0;
    reach(m.behind.peak_bytes);
    alive += m.behind.delta_bytes;
    copied = m.copied_bytes;
  }
  void run(const plan::PassNode& n) {
    const ChunkMemory& c = stage.chunks[as_index(n.chunk)];
    const plan::TemplateMemory& m = memory_of(c, n);
    reach(m.peak_bytes);
    alive += m.delta_bytes;
    if (n.kind == kForward && c.forward.copied_bytes > 0) behind_copy(c.forward);
    Sent& there = sent[stage.v_shaped ? as_index(n.chunk) : 0];
    if (n.kind == kForward && c.sent_activation_bytes > 0)
      there.activation = c.sent_activation_bytes;
    if (n.kind == kBackward && c.sent_gradient_bytes > 0) there.gradient = c.sent_gradient_bytes;
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
  walk.reach(stage.update.before.peak_bytes);
  walk.alive += stage.update.before.delta_bytes;
  if (stage.update.copied_bytes > 0) walk.behind_copy(stage.update);
  return stage.persistent_bytes + walk.peak;
}

std::int64_t in_flight(plan::Schedule schedule, int stage, int stages, std::int64_t micro_batches) {
  switch (schedule) {
    case plan::Schedule::kGPipe: return micro_batches;
    case plan::Schedule::k1F1B:
    case plan::Schedule::kZeroBubbleH1:
      return std::min<std::int64_t>(stages - stage, micro_batches);
    case plan::Schedule::kInterleaved:
    case plan::Schedule::kZeroBubbleV:
    case plan::Schedule::kDualPipeV: break;
  }
  ORRERY_CHECK(false, "such a schedule holds chunks");
}

}  // namespace orrery::costmodel
