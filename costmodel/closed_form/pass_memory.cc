#include "costmodel/closed_form/pass_memory.h"

#include <algorithm>
#include <utility>

namespace orrery::costmodel {

using plan::TemplateMemory;

void PassCalls::add(std::initializer_list<Call> turn, int turns) {
  if (!counts_) return;
  const int listed = std::min(turns, depth_ + 2);
  for (int t = 0; t < listed; ++t) {
    for (Call c : turn) {
      const bool gathers = c.gather.delta_bytes != 0;
      if (gathers) {
        c.call.delta_bytes -= c.gather.delta_bytes;
        c.call.peak_bytes -= c.gather.delta_bytes;
      }
      steps_.push_back({c.call, c.gather, c.copied_bytes, gathers, t == 1 ? turns - listed : 0});
    }
  }
}

PassMemory PassCalls::pass_memory() const {
  PassMemory out;
  TemplateMemory *total = &out.before, turn;
  std::size_t ahead = 0;  // step whose gather comes next
  int unused = 0;         // gathers issued before their call
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    const auto issue = [&](const TemplateMemory& m) {
      *total = after(*total, m);
      if (step.more > 0) turn = after(turn, m);
    };
    // The second turn issues the gather of the last one listed.
    for (; ahead < steps_.size() && unused < depth_ + (step.gathers ? 1 : 0); ++ahead) {
      if (!steps_[ahead].gathers) continue;
      issue(steps_[ahead].gather);
      ++unused;
    }
    issue(step.call);
    if (step.copied_bytes > 0) {
      const std::int64_t before = std::exchange(out.copied_bytes, step.copied_bytes);
      if (before == 0) total = &out.behind;
      issue({.delta_bytes = -before, .peak_bytes = 0});
    }
    if (step.gathers) --unused;
    if (step.more == 0 || (i + 1 < steps_.size() && steps_[i + 1].more > 0)) continue;
    const std::int64_t rise = std::max<std::int64_t>(0, (step.more - 1) * turn.delta_bytes);
    *total = after(*total, {.delta_bytes = step.more * turn.delta_bytes,
                            .peak_bytes = turn.peak_bytes + rise});
    turn = {};
  }
  total->delta_bytes -= out.copied_bytes;
  return out;
}

}  // namespace orrery::costmodel
