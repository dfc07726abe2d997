#pragma once
/// A layer's costs from a lowering of its own: the slow twin of LayerCosts, which lowers a layer
/// once for all that are alike.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/numbers.h"
#include "costmodel/closed_form/closed_form.h"
#include "costmodel/closed_form/stage_memory.h"
#include "tests/support/operation_time.h"

namespace orrery::costmodel::fresh {

/// Time of a template by what may overlap: compute and tensor communication, each in turn and where
/// one waits for the other (side_by_side), data communication beside them. In a ring, blocks travel
/// beside the attention over the block before: with overlap, each block of attention hides the
/// shifts issued since the last one.
struct Times {
  std::int64_t serial_ps = 0, data_ps = 0, copy_ps = 0;
};
inline Times operator+(Times a, Times b) {
  return {a.serial_ps + b.serial_ps, a.data_ps + b.data_ps, a.copy_ps + b.copy_ps};
}

inline bool is_attention_block(const plan::Program& program, const plan::Op& op) {
  return op.kind == plan::OpKind::kCompute &&
         program.segments[op.segment].kind == model::SegmentKind::kAttentionBlock;
}
inline bool is_shift(const plan::Op& op) {
  return op.kind == plan::OpKind::kCollective && op.collective == plan::Collective::kPointToPoint;
}

/// Whether an operation changes what the other one touches, or touches what the other one changes.
/// Nothing waits for a buffer's end.
inline bool conflict(const plan::Op& a, const plan::Op& b) {
  const auto touched = [](const plan::Op& op, bool changed) {
    std::vector<plan::BufferRef> all;
    for (const auto* list : {&op.updates, &op.writes})
      all.insert(all.end(), list->begin(), list->end());
    if (op.gradients) all.push_back(*op.gradients);
    if (changed) return all;
    all.insert(all.end(), op.reads.begin(), op.reads.end());
    if (op.weights) all.push_back(*op.weights);
    return all;
  };
  const auto meet = [&](const plan::Op& x, const plan::Op& y) {
    const auto of_y = touched(y, false);
    return std::ranges::any_of(touched(x, true), [&](const plan::BufferRef& r) {
      return std::ranges::find(of_y, r) != of_y.end();
    });
  };
  return meet(a, b) || meet(b, a);
}

/// Every operation runs when the one before it on its stream has ended, and all that it conflicts
/// with; slower while others compute beside communication.
inline std::int64_t side_by_side_ps(const CostModel& cost, const plan::Program& program,
                                    const std::vector<plan::Op>& ops, int first_rank,
                                    int rank_count) {
  std::vector<double> left;
  for (const plan::Op& op : ops)
    left.push_back(op.stream == plan::Stream::kData || op.kind == plan::OpKind::kCopy
                       ? -1
                       : real(tests::op_ps(cost, program, op, first_rank, rank_count)));
  const double slower = real(std::max<std::int64_t>(cost.overlap_slowdown_ppm(), 1'000'000)) / 1e6;
  double now = 0;
  for (;;) {
    std::vector<std::size_t> running;
    std::array<bool, 2> kinds{};
    for (std::size_t i = 0; i < ops.size(); ++i) {
      bool waits = left[i] < 0;
      for (std::size_t j = 0; j < i && !waits; ++j)
        waits = left[j] >= 0 && (ops[j].stream == ops[i].stream || conflict(ops[i], ops[j]));
      if (waits) continue;
      running.push_back(i);
      kinds[ops[i].kind == plan::OpKind::kCompute ? 0 : 1] = true;
    }
    if (running.empty()) return std::llround(now);
    double least = left[running.front()];
    for (const std::size_t i : running) least = std::min(least, left[i]);
    now += least * (kinds[0] && kinds[1] ? slower : 1);
    for (const std::size_t i : running) left[i] = left[i] > least ? left[i] - least : -1;
  }
}

inline Times times_of(const CostModel& cost, const plan::Program& program, plan::TemplateId id,
                      int first_rank, int rank_count) {
  Times t;
  std::int64_t shifts_ps = 0;  // since the last block
  for (const auto& op : program.templates[id].ops) {
    const std::int64_t ps = tests::op_ps(cost, program, op, first_rank, rank_count);
    if (is_shift(op)) {
      shifts_ps += ps;
    } else if (is_attention_block(program, op)) {
      t.serial_ps += overlapped_ps(ps, shifts_ps, cost.overlap_slowdown_ppm(), cost.overlaps());
      shifts_ps = 0;
    } else if (op.kind == plan::OpKind::kCopy) {
      t.copy_ps += ps;
    } else {
      (op.stream == plan::Stream::kData ? t.data_ps : t.serial_ps) += ps;
    }
  }
  t.serial_ps += shifts_ps;
  const std::vector<plan::Op>& ops = program.templates[id].ops;
  if (cost.overlaps() && std::ranges::none_of(ops, is_shift))
    t.serial_ps = side_by_side_ps(cost, program, ops, first_rank, rank_count);
  return t;
}

/// Around the update; update_ps is left out.
inline LayerCost::StateCopies state_copies(const CostModel& cost, const plan::LayerTemplates& t,
                                           int first_rank, int rank_count) {
  LayerCost::StateCopies found;
  const std::vector<plan::Op>& ops = t.program.templates[t.update].ops;
  for (const plan::Op& op : ops) {
    if (op.kind != plan::OpKind::kCopy) continue;
    (plan::copies_out(op) ? found.out_ps : found.in_ps) +=
        tests::op_ps(cost, t.program, op, first_rank, rank_count);
    if (plan::copies_out(op)) found.bytes += op.bytes;
  }
  const auto copy = std::ranges::find(ops, plan::OpKind::kCopy, &plan::Op::kind);
  const bool in_turn = copy != ops.end() && std::any_of(ops.begin(), copy, [](const plan::Op& op) {
                         return op.stream == plan::Stream::kCompute;
                       });
  for (auto op = ops.begin(); in_turn && op != copy; ++op) {
    if (op->stream != plan::Stream::kData)
      found.front_ps += tests::op_ps(cost, t.program, *op, first_rank, rank_count);
  }
  return found;
}

inline std::int64_t updated_ps(const LayerCost::StateCopies& s, bool overlaps) {
  const std::int64_t all_ps = s.in_ps + s.update_ps + s.out_ps;
  if (!overlaps) return s.front_ps + all_ps + s.reduction_ps;
  return s.front_ps > 0 ? s.front_ps + all_ps - s.out_ps
                        : std::max({s.update_ps, all_ps / 2, s.reduction_ps});
}

inline void state_memory(const plan::LayerTemplates& t, LayerCost& c) {
  const auto memory = [&](plan::TemplateId id) { return plan::template_memory(t.program, id); };
  for (const auto& p : t.program.classes.front().persistent)
    c.persistent_bytes += t.program.buffers[p.buffer].device_bytes();
  c.gather_forward = memory(t.gather_forward);
  c.gather_backward = memory(t.gather_backward);
  c.forward = after(c.gather_forward, memory(t.forward));
  c.backward = after(c.gather_backward, memory(t.backward));
  c.sync = memory(t.sync);
  c.zero_gradient = memory(t.zero_gradient);
  c.update = memory(t.update);
  c.copied_bytes = plan::copied_bytes(t.program, t.program.templates[t.forward]);
  c.stash_bytes = c.forward.delta_bytes - c.copied_bytes;
  if (c.splits) c.weight = memory(t.weight);
}

/// What LayerCosts says of these templates.
inline LayerCost layer_cost(const CostModel& cost, const plan::LayerTemplates& t, int first_rank,
                            int rank_count) {
  const auto times = [&](plan::TemplateId id) {
    return times_of(cost, t.program, id, first_rank, rank_count);
  };
  const auto alone = [&](Times x) {
    return overlapped_ps(x.serial_ps, x.data_ps, cost.overlap_slowdown_ppm(), cost.overlaps());
  };
  const auto overlapped = [&](Times x) {
    return cost.overlaps() ? std::max(alone(x), x.copy_ps) : alone(x) + x.copy_ps;
  };
  const Times forward = times(t.forward) + times(t.gather_forward);
  const Times backward = times(t.backward) + times(t.gather_backward);
  const Times sync = times(t.sync), last = t.sync_last.valid() ? sync + times(t.sync_last) : sync;
  LayerCost c;
  c.splits = t.weight.valid() && !t.program.templates[t.weight].ops.empty();
  c.forward_ps = overlapped(forward);
  if (c.splits) {
    const Times weight = times(t.weight);
    c.backward_ps = c.backward_sync_ps = overlapped(backward);
    c.weight_ps = overlapped(t.reduces_per_micro_batch ? weight + sync : weight);
    c.weight_sync_ps = overlapped(weight + last);
  } else {
    c.backward_ps = overlapped(t.reduces_per_micro_batch ? backward + sync : backward);
    c.backward_sync_ps = overlapped(backward + last);
  }
  c.copies = {
      forward.copy_ps, backward.copy_ps, c.forward_ps - alone(forward),
      c.backward_ps - alone(t.reduces_per_micro_batch && !c.splits ? backward + sync : backward)};
  c.reduction_ps = (t.sync_last.valid() ? times(t.sync_last).data_ps : 0) +
                   (t.reduces_per_micro_batch ? 0 : sync.data_ps);
  c.gather_forward_ps = times(t.gather_forward).data_ps;
  c.gather_backward_ps = times(t.gather_backward).data_ps;
  c.reduction_each_ps = t.reduces_per_micro_batch ? sync.data_ps : 0;
  const Times start = times(t.zero_gradient);
  c.zero_gradient_ps = overlapped(start);
  if (cost.overlaps()) {
    c.zero_gradient_ps = start.serial_ps;
    c.gather_updated_ps = start.data_ps;
    c.late_forward_ps = overlapped(forward + Times{0, start.data_ps}) - c.forward_ps;
  }
  c.states = state_copies(cost, t, first_rank, rank_count);
  const Times update = times(t.update);
  const bool copied = c.states.bytes > 0;
  c.states.update_ps = copied ? update.serial_ps - c.states.front_ps : alone(update);
  c.states.reduction_ps = copied ? update.data_ps : 0;
  c.update_ps = c.zero_gradient_ps + updated_ps(c.states, cost.overlaps());
  state_memory(t, c);
  c.reduces_per_micro_batch = t.reduces_per_micro_batch;
  return c;
}

}  // namespace orrery::costmodel::fresh
