#include "costmodel/closed_form/layer_form.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "costmodel/closed_form/closed_form.h"
#include "model/segment.h"

namespace orrery::costmodel {
namespace {

using enum plan::OpKind;

/// Kernels of a template that the host issues, without what serves weights: that depends on how
/// they are sharded.
int kernels_of(const plan::Program& program, const std::vector<plan::Op>& ops,
               const CostModel& cost) {
  int kernels = 0;
  for (const plan::Op& op : ops) {
    if (op.kind == kCopy) continue;
    if (op.kind != kCompute) {
      kernels += op.stream == plan::Stream::kData ? 0 : 1;
      continue;
    }
    const model::SegmentShape& shape = program.segments[op.segment];
    if (shape.kind == model::SegmentKind::kZeroGradient) continue;
    kernels += cost.kernels(shape, op.phase);
  }
  return kernels;
}

}  // namespace

std::int64_t overlapped_ps(std::int64_t serial_ps, std::int64_t data_ps, std::int64_t slowdown_ppm,
                           bool overlaps) {
  constexpr std::int64_t kMillion = 1'000'000;
  if (!overlaps) return serial_ps + data_ps;
  const std::int64_t both = std::min(serial_ps, data_ps);
  return mul_div_up(both, std::max(slowdown_ppm, kMillion), kMillion) +
         std::max(serial_ps, data_ps) - both;
}

TemplateForm::Step TemplateForm::step_of(const plan::Op& op) {
  Step s;
  s.kind = op.kind;
  s.data_stream = op.stream == plan::Stream::kData;
  s.moves = op.kind == kCopy;
  s.moves_out = plan::copies_out(op);
  if (s.moves) s.bytes = op.bytes;
  s.stream = static_cast<std::uint8_t>(op.stream);
  s.phase = op.phase;
  return s;
}

const std::vector<plan::Op>& TemplateForm::operations(const std::vector<plan::Op>& all, Of of,
                                                      std::vector<plan::Op>& some) {
  if (of == Of::kAll) return all;
  std::ranges::copy_if(all, std::back_inserter(some), [&](const plan::Op& op) {
    return (op.kind == kCopy) == (of == Of::kCopies);
  });
  return some;
}

TemplateForm::TemplateForm(const plan::Program& program, plan::TemplateId id, bool symbolic_weights,
                           OperationPrices& prices, Of of) {
  if (!id.valid()) return;
  std::vector<plan::Op> some;
  const std::vector<plan::Op>& ops = operations(program.templates[id].ops, of, some);
  steps_.reserve(ops.size());
  prices.count(OperationPrices::kLowered * ops.size());
  const auto& buffers = program.buffers;
  const auto flat = [&](const plan::BufferRef& r) { return buffers[r.buffer].unit.has_value(); };
  const auto unit = [&](const plan::BufferRef& r) { return as_int(buffers[r.buffer].unit->raw()); };
  const auto bytes = [&](const plan::BufferRef& r) { return buffers[r.buffer].device_bytes(); };
  for (const plan::Op& op : ops) {
    Step s = step_of(op);
    if (op.kind == kCompute) {
      s.shape = prices.shape(program.segments[op.segment]);
      s.attention_block = program.segments[op.segment].kind == model::SegmentKind::kAttentionBlock;
    }
    if (op.kind == kCollective) {
      s.collective = op.collective;
      s.group = program.groups[op.group];
      s.bytes = prices.cost().wire_bytes(program, op);
      if (plan::moves_shards(op)) {
        if (const auto copies = prices.cost().copies(op)) s.copies = prices.shape(*copies);
      }
      const auto* touched = !op.updates.empty() ? &op.updates : &op.writes;
      if (touched->empty()) touched = &op.reads;
      s.scales = !flat(touched->front());
      s.shift = op.collective == plan::Collective::kPointToPoint && op.senders.empty();
      s.in_pieces = op.pieces > 1;
    }
    for (const plan::Leg& leg : op.legs) {
      (leg.send ? s.sends : s.receives).push_back(leg.peer_offset);
      ORRERY_CHECK(s.bytes == 0 || s.bytes == bytes(leg.buffer), "legs of '{}' differ", op.name);
      s.bytes = bytes(leg.buffer);
      s.scales = true;
    }
    for (const plan::BufferRef& r : op.writes) {
      if (flat(r) && symbolic_weights)
        s.zeroes_part_of = unit(r);
      else
        (flat(r) ? s.fixed_writes : s.writes) += bytes(r);
    }
    for (const plan::BufferRef& r : op.frees) {
      if (s.moves_out)
        copied_bytes_ += bytes(r);
      else if (flat(r) && symbolic_weights)
        s.frees_weights_of.push_back(unit(r));
      else
        (flat(r) ? s.fixed_frees : s.frees) += bytes(r);
    }
    steps_.push_back(std::move(s));
  }
  find_dependencies(ops);
  find_experts(ops);
  find_together(ops);
  find_alike();
  kernels_ = kernels_of(program, ops, prices.cost());
}

void TemplateForm::find_alike() {
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const auto first = std::ranges::find_if(
        steps_, [&](const Step& s) { return &s == &steps_[i] || s.takes_as_long(steps_[i]); });
    steps_[i].like = static_cast<std::uint16_t>(first - steps_.begin());
  }
}

void TemplateForm::find_experts(const std::vector<plan::Op>& ops) {
  for (std::size_t i = 0; i < ops.size(); ++i)
    steps_[i].rows_exchange = plan::exchanges_rows(ops[i]);
  exchanges_rows_ = std::ranges::any_of(steps_, &Step::rows_exchange);
}

/// Who reads or changes what another stream has changed, or changes what it has read. A stream ends
/// its steps in their order, so of each other stream the last one counts. A ring's shifts have
/// their own rule in times().
void TemplateForm::find_dependencies(const std::vector<plan::Op>& ops) {
  if (std::ranges::any_of(steps_, &Step::shift)) return;
  const auto beside = [](const Step& s) { return s.data_stream || s.moves; };
  const auto any = std::ranges::find_if_not(steps_, beside);
  if (std::all_of(any, steps_.end(),
                  [&](const Step& s) { return beside(s) || s.stream == any->stream; }))
    return;
  struct Access {
    plan::BufferRef buffer;
    std::uint16_t step = 0;
    bool changes = false;
  };
  std::vector<Access> accesses;
  std::array<std::uint16_t, plan::kStreams> last_of;
  last_of.fill(kNone);
  first_.fill(kNone);
  for (std::uint16_t i = 0; i < ops.size(); ++i) {
    const plan::Op& op = ops[i];
    Step& step = steps_[i];
    if (step.data_stream || step.moves) continue;
    std::array<int, plan::kStreams> last;
    last.fill(-1);
    const auto touch = [&](const plan::BufferRef& buffer, bool changes) {
      for (const Access& a : accesses) {
        if (a.buffer == buffer && (changes || a.changes))
          last[steps_[a.step].stream] = std::max<int>(last[steps_[a.step].stream], a.step);
      }
      accesses.push_back({buffer, i, changes});
    };
    for (const plan::BufferRef& r : op.reads) touch(r, false);
    if (op.weights) touch(*op.weights, false);
    if (op.gradients) touch(*op.gradients, true);
    for (const auto* changed : {&op.updates, &op.writes}) {
      for (const plan::BufferRef& r : *changed) touch(r, true);
    }
    for (std::size_t stream = 0; stream < last.size(); ++stream) {
      if (stream != step.stream && last[stream] >= 0)
        step.after.push_back(static_cast<std::uint16_t>(last[stream]));
    }
    (last_of[step.stream] == kNone ? first_[step.stream] : steps_[last_of[step.stream]].next) = i;
    if (last_of[step.stream] == kNone) streams_.push_back(step.stream);
    last_of[step.stream] = i;
    const bool first = i == 0, follows = !first && steps_[i - 1].stream == step.stream;
    side_by_side_ = side_by_side_ ||
                    (!first && !follows && !std::ranges::count(step.after, std::uint16_t(i - 1)));
  }
}

void TemplateForm::find_together(const std::vector<plan::Op>& ops) {
  for (const plan::Op& op : ops) {
    if (op.kind == kCompute || op.kind == kCopy || op.stream == plan::Stream::kData) continue;
    const bool in_blocks = op.kind == kCollective && !plan::states_messages(op);
    const int span = in_blocks ? steps_[as_index(&op - ops.data())].group.span() : 0;
    together_ = span == 0 || together_ == 0 ? 0 : std::lcm(together_, span);
  }
}

std::vector<Ranks> TemplateForm::parts(Ranks ranks, const CostModel& cost) const {
  const int end = ranks.first + ranks.count;
  if (together_ == 0 || cost.kind_end(ranks.first) >= end) return {ranks};
  std::vector<Ranks> parts;
  for (int at = ranks.first; at < end;) {
    const int alike = (std::min(cost.kind_end(at), end) - at) / together_ * together_;
    const int count = std::min(std::max(alike, together_), end - at);
    const bool more = !parts.empty() && cost.kinds_of(at, count) ==
                                            cost.kinds_of(parts.back().first, parts.back().count);
    if (more)
      parts.back().count += count;
    else
      parts.push_back({at, count});
    at += count;
  }
  return parts;
}

Ranks TemplateForm::slowest(std::int64_t b, const WeightBytes& weights, Ranks ranks,
                            OperationPrices& prices) const {
  if (!prices.cost().mixed()) return ranks;
  const std::vector<Ranks> all = parts(ranks, prices.cost());
  return all.size() == 1 ? ranks : *std::ranges::max_element(all, {}, [&](Ranks part) {
    return device_times(b, weights, ranks, part, prices).serial_ps;
  });
}

TemplateForm::Times& TemplateForm::Times::operator+=(const Times& o) {
  serial_ps += o.serial_ps;
  data_ps += o.data_ps;
  copy_out_ps += o.copy_out_ps;
  copy_in_ps += o.copy_in_ps;
  front_ps += o.front_ps;
  return *this;
}

TemplateForm::Times TemplateForm::times(std::int64_t b, const WeightBytes& weights, Ranks ranks,
                                        OperationPrices& prices) const {
  Times t = device_times(b, weights, ranks, slowest(b, weights, ranks, prices), prices);
  if (kernels_ > 0) t.serial_ps = std::max(t.serial_ps, prices.cost().host_ps(kernels_));
  return t;
}

std::int64_t TemplateForm::host_wait_ps(std::int64_t b, const WeightBytes& weights, Ranks ranks,
                                        OperationPrices& prices) const {
  if (kernels_ == 0) return 0;
  const Ranks part = slowest(b, weights, ranks, prices);
  const std::int64_t device_ps = device_times(b, weights, ranks, part, prices).serial_ps;
  return std::max<std::int64_t>(prices.cost().host_ps(kernels_) - device_ps, 0);
}

TemplateForm::Times TemplateForm::device_times(std::int64_t b, const WeightBytes& weights,
                                               Ranks ranks, Ranks part,
                                               OperationPrices& prices) const {
  Times t;
  std::int64_t shifts_ps = 0;  // since the last block
  const bool beside = side_by_side_ && prices.cost().overlaps();
  std::vector<std::int64_t> alone(steps_.size());
  const DeviceKinds kinds = prices.cost().kinds_of(part.first, part.count);
  prices.count(steps_.size());
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& s = steps_[i];
    const std::int64_t ps =
        s.like < i
            ? alone[s.like]
            : step_ps(s, b, weights, s.data_stream || s.moves ? ranks : part, ranks, kinds, prices);
    alone[i] = ps;
    if (!s.data_stream && !s.moves && t.copy_out_ps + t.copy_in_ps == 0) t.front_ps += ps;
    if (s.moves) {
      (s.moves_out ? t.copy_out_ps : t.copy_in_ps) += ps;
    } else if (s.data_stream) {
      t.data_ps += ps;
      if (s.copies) t.serial_ps += prices.segment(*s.copies, plan::Phase::kF, 0, kinds).ps;
    } else if (beside) {
      continue;
    } else if (s.shift) {
      shifts_ps += ps;
    } else if (s.attention_block) {
      t.serial_ps += overlapped_ps(ps, shifts_ps, prices.cost().overlap_slowdown_ppm(),
                                   prices.cost().overlaps());
      shifts_ps = 0;
    } else {
      t.serial_ps += ps;
    }
  }
  t.serial_ps += shifts_ps;
  if (beside) t.serial_ps = side_by_side_ps(alone, prices.cost().overlap_slowdown_ppm());
  if (exchanges_rows_ && prices.cost().overlaps_experts())
    t.serial_ps = steady_ps(b, weights, part, ranks, prices);
  return t;
}

/// Of the second of two calls: the last exchange of the first is still under way when it begins.
std::int64_t TemplateForm::steady_ps(std::int64_t b, const WeightBytes& weights, Ranks part,
                                     Ranks ranks, OperationPrices& prices) const {
  const std::int64_t slowdown_ppm = prices.cost().overlap_slowdown_ppm();
  const DeviceKinds kinds = prices.cost().kinds_of(part.first, part.count);
  std::int64_t now = 0, begun = 0, left = 0, shifts_ps = 0;  // left: of the exchange under way
  for (int call = 0; call < 2; ++call) {
    begun = now;
    for (const Step& s : steps_) {
      if (s.data_stream || s.moves) continue;
      std::int64_t ps = step_ps(s, b, weights, part, ranks, kinds, prices);
      if (s.kind == kCompute) {
        if (s.attention_block) {
          ps = overlapped_ps(ps, std::exchange(shifts_ps, 0), slowdown_ppm, true);
        }
        const std::int64_t both = std::min(ps, left);
        now += overlapped_ps(ps, both, slowdown_ppm, true);
        left -= both;
      } else if (s.shift) {
        shifts_ps += ps;
      } else {
        now += std::exchange(left, s.rows_exchange ? ps : 0) + (s.rows_exchange ? 0 : ps);
      }
    }
    now += std::exchange(shifts_ps, 0);
  }
  return now - begun;
}

std::int64_t TemplateForm::side_by_side_ps(std::vector<std::int64_t>& left,
                                           std::int64_t slowdown_ppm) const {
  const double k = real(std::max<std::int64_t>(slowdown_ppm, 1'000'000)) / 1e6;
  auto head = first_;
  double now = 0;
  for (;;) {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    std::array<std::size_t, plan::kStreams> running;
    std::size_t count = 0;
    bool computes = false, talks = false;
    for (const std::uint8_t stream : streams_) {
      const std::uint16_t step = head[stream];
      // a stream ends its steps in their order
      if (step == kNone || std::ranges::any_of(steps_[step].after, [&](std::uint16_t before) {
            return head[steps_[before].stream] <= before;
          }))
        continue;
      running[count++] = stream;
      least = std::min(least, left[step]);
      (steps_[step].kind == kCompute ? computes : talks) = true;
    }
    if (count == 0) return std::llround(now);
    now += real(least) * (computes && talks ? k : 1);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint16_t& step = head[running[i]];
      left[step] -= least;
      if (left[step] == 0) step = steps_[step].next;
    }
  }
}

std::int64_t TemplateForm::step_ps(const Step& s, std::int64_t b, const WeightBytes& weights,
                                   Ranks part, Ranks ranks, DeviceKinds kinds,
                                   OperationPrices& prices) const {
  switch (s.kind) {
    case kCompute: {
      if (s.zeroes_part_of < 0) return prices.segment(s.shape, s.phase, b, kinds).ps;
      const std::int64_t bytes = weights.part[as_index(s.zeroes_part_of)];
      if (bytes == 0) return 0;
      model::SegmentShape zero = prices.shape_of(s.shape);
      zero.elements = bytes / model::element_bytes(zero.dtype);
      return prices.segment(prices.shape(zero), s.phase, 0, kinds).ps;
    }
    case kCollective:
      return prices.collective_ps(s.collective, s.group, s.scales ? s.bytes * b : s.bytes,
                                  s.in_pieces, part, ranks);
    case kExchange: {
      std::int64_t ps = 0;
      for (const int peer : s.sends)
        ps = std::max(ps, prices.exchange_ps(ranks, peer, s.bytes * b));
      for (const int peer : s.receives)
        ps =
            std::max(ps, prices.exchange_ps({ranks.first + peer, ranks.count}, -peer, s.bytes * b));
      return ps;
    }
    case kCopy: return prices.copy_ps(s.moves_out, s.bytes * b, ranks);
  }
  ORRERY_CHECK(false, "kind of operation out of range");
}

plan::TemplateMemory TemplateForm::memory(std::int64_t b, const WeightBytes& weights,
                                          OperationPrices& prices) const {
  plan::TemplateMemory m;
  for (const Step& s : steps_) {
    const bool zeroes = s.zeroes_part_of >= 0;
    const std::int64_t part = zeroes ? weights.part[as_index(s.zeroes_part_of)] : 0;
    if (zeroes && part == 0) continue;
    m.delta_bytes += s.writes * b + s.fixed_writes + part;
    const bool plain = s.kind == kCompute && !zeroes;
    m.peak_bytes =
        std::max(m.peak_bytes,
                 m.delta_bytes + (plain ? prices.segment(s.shape, s.phase, b).transient_bytes : 0));
    m.delta_bytes -= s.frees * b + s.fixed_frees;
    for (const int u : s.frees_weights_of) m.delta_bytes -= weights.gathered[as_index(u)];
  }
  return m;
}

}  // namespace orrery::costmodel
