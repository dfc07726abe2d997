#include "costmodel/closed_form/layer_parts.h"

#include <algorithm>

#include "costmodel/closed_form/stage_memory.h"

namespace orrery::costmodel {
namespace {

using Of = TemplateForm::Of;
using Times = TemplateForm::Times;

/// Of one of many updates that are alike.
std::int64_t update_of(const LayerCost::StateCopies& c, bool overlaps) {
  const std::int64_t all_ps = c.in_ps + c.update_ps + c.out_ps;
  if (!overlaps) return c.front_ps + all_ps + c.reduction_ps;
  if (c.front_ps > 0) return c.front_ps + c.in_ps + c.update_ps;
  return std::max({c.update_ps, all_ps / 2, c.reduction_ps});
}

}  // namespace

WeightForm::WeightForm(const plan::LayerTemplates& t, OperationPrices& prices)
    : forms(OfWeights<plan::TemplateId>{t.gather_forward, t.gather_backward, t.zero_gradient,
                                        t.sync, t.sync_last, t.update}
                .each([&](plan::TemplateId id) {
                  return TemplateForm(t.program, id, false, prices,
                                      id == t.update ? Of::kAll : Of::kAllButCopies);
                })),
      memory(forms.each([&](const TemplateForm& form) { return form.memory(1, {}, prices); })),
      reduces_per_micro_batch(t.reduces_per_micro_batch) {
  for (const auto& p : t.program.classes.front().persistent)
    persistent_bytes += t.program.buffers[p.buffer].device_bytes();
  if (!t.update.valid()) return;
  const plan::Template& update = t.program.templates[t.update];
  states_bytes = plan::copied_bytes(t.program, update);
  const auto copy = std::ranges::find(update.ops, plan::OpKind::kCopy, &plan::Op::kind);
  updates_in_turn = states_bytes > 0 && std::any_of(update.ops.begin(), copy, [](const auto& op) {
                      return op.stream == plan::Stream::kCompute;
                    });
}

BodyForm::BodyForm(const plan::LayerTemplates& t, bool symbolic_weights, OperationPrices& prices)
    : splits(t.weight.valid() && !t.program.templates[t.weight].ops.empty()) {
  const auto form = [&](plan::TemplateId id, Of of) {
    return TemplateForm(t.program, id, symbolic_weights, prices, of);
  };
  forms = {form(t.forward, Of::kAll), form(t.backward, Of::kAll), form(t.weight, Of::kAll),
           form(t.gather_backward, Of::kCopies)};
}

BodyMemory memory_of(const BodyForm& body, std::int64_t b, const WeightBytes& bytes,
                     OperationPrices& prices) {
  return {body.forms.each([&](const TemplateForm& f) { return f.memory(b, bytes, prices); }),
          body.forms.forward.copied_bytes(b)};
}

namespace {

void state_memory(const WeightForm& w, const BodyMemory& memory, LayerCost& c) {
  c.persistent_bytes = w.persistent_bytes;
  c.gather_forward = w.memory.gather_forward;
  c.gather_backward = after(w.memory.gather_backward, memory.copy_in);
  c.forward = after(c.gather_forward, memory.forward);
  c.backward = after(c.gather_backward, memory.backward);
  c.sync = w.memory.sync;
  c.zero_gradient = w.memory.zero_gradient;
  c.update = w.memory.update;
  c.copied_bytes = memory.copied_bytes;
  c.stash_bytes = c.forward.delta_bytes - c.copied_bytes;
  if (c.splits) c.weight = memory.weight;
}

}  // namespace

LayerCost join(const CostModel& cost, const BodyForm& body, const BodyTimes& times,
               const BodyMemory& memory, const WeightTimes& weights) {
  const WeightForm& w = *weights.form;
  const OfWeights<Times>& t = weights.times;
  const auto sum = [](Times x, const Times& y) { return x += y; };
  const auto without_copies = [&](const Times& x) {
    return overlapped_ps(x.serial_ps, x.data_ps, cost.overlap_slowdown_ppm(), cost.overlaps());
  };
  const auto overlapped = [&](const Times& x) {
    const std::int64_t ps = without_copies(x);
    const std::int64_t copy_ps = x.copy_out_ps + x.copy_in_ps;  // one of them
    return cost.overlaps() ? std::max(ps, copy_ps) : ps + copy_ps;
  };
  LayerCost c;
  const Times forward = sum(times.forward, t.gather_forward);
  c.forward_ps = overlapped(forward);
  c.splits = body.splits;
  const Times backward = sum(sum(times.backward, times.copy_in), t.gather_backward);
  const auto synced = [&](const Times& pass, std::int64_t& plain_ps, std::int64_t& sync_ps) {
    sync_ps = overlapped(sum(sum(pass, t.sync), t.sync_last));
    plain_ps = overlapped(w.reduces_per_micro_batch ? sum(pass, t.sync) : pass);
  };
  if (body.splits) {
    c.backward_ps = c.backward_sync_ps = overlapped(backward);
    synced(times.weight, c.weight_ps, c.weight_sync_ps);
  } else {
    synced(backward, c.backward_ps, c.backward_sync_ps);
  }
  c.copies = {
      .out_ps = forward.copy_out_ps,
      .in_ps = backward.copy_in_ps,
      .held_forward_ps = c.forward_ps - without_copies(forward),
      .held_backward_ps = c.backward_ps - without_copies(w.reduces_per_micro_batch && !body.splits
                                                             ? sum(backward, t.sync)
                                                             : backward)};
  c.reduction_ps = t.sync_last.data_ps + (w.reduces_per_micro_batch ? 0 : t.sync.data_ps);
  c.gather_forward_ps = t.gather_forward.data_ps;
  c.gather_backward_ps = t.gather_backward.data_ps;
  c.reduction_each_ps = w.reduces_per_micro_batch ? t.sync.data_ps : 0;
  c.zero_gradient_ps = overlapped(t.zero_gradient);
  if (cost.overlaps()) {
    c.zero_gradient_ps = t.zero_gradient.serial_ps;
    c.gather_updated_ps = t.zero_gradient.data_ps;
    c.late_forward_ps = overlapped(sum(forward, {0, c.gather_updated_ps})) - c.forward_ps;
  }
  const bool copied = w.states_bytes > 0;
  const std::int64_t front_ps = w.updates_in_turn ? t.update.front_ps : 0;
  c.states = {.in_ps = t.update.copy_in_ps,
              .out_ps = t.update.copy_out_ps,
              .update_ps = copied ? t.update.serial_ps - front_ps : without_copies(t.update),
              .front_ps = front_ps,
              .reduction_ps = copied ? t.update.data_ps : 0,
              .bytes = w.states_bytes};
  c.update_ps = c.zero_gradient_ps + update_of(c.states, cost.overlaps());
  state_memory(w, memory, c);
  c.reduces_per_micro_batch = w.reduces_per_micro_batch;
  return c;
}

}  // namespace orrery::costmodel
