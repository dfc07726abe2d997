/// Segments over flat storage, and the local slice.
///
/// AdamW (Loshchilov & Hutter, 2019; decoupled decay, as torch.optim.AdamW), for update number t:
///
///   p -= lr wd p;   m += (1 - b1)(g - m);   v += (1 - b2)(g^2 - v)
///   p -= lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)
///
/// One loop without temporaries and without contraction, so an element's result never depends on
/// where its shard begins. In bf16 training p is the fp32 master, and the bf16 parameter is its
/// rounding.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/numbers.h"
#include "executor/segments/segment_kernels.h"
#include "executor/segments/vector_math.h"

namespace orrery::executor::kernels {
namespace {

device::AdamWStep step_of(const AdamW& a, std::int64_t update) {
  const double t = real(update);
  return {.decay = static_cast<float>(1.0 - a.learning_rate * a.weight_decay),
          .beta1 = static_cast<float>(1.0 - a.beta1),
          .beta2 = static_cast<float>(1.0 - a.beta2),
          .step = static_cast<float>(a.learning_rate / (1.0 - std::pow(a.beta1, t))),
          .root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(a.beta2, t))),
          .epsilon = static_cast<float>(a.epsilon)};
}

ORRERY_EACH_WIDTH void update_range(float* __restrict p, const float* __restrict g,
                                    float* __restrict m, float* __restrict v, std::int64_t n,
                                    const device::AdamWStep& c) {
  for (std::int64_t i = 0; i < n; ++i) {
    m[i] += c.beta1 * (g[i] - m[i]);
    v[i] += c.beta2 * (g[i] * g[i] - v[i]);
    p[i] = c.decay * p[i] - c.step * (m[i] / (std::sqrt(v[i]) * c.root_correction + c.epsilon));
  }
}

// The owned part of a tensor that is either the shard itself or the whole flat storage.
at::Tensor owned(const at::Tensor& flat, std::int64_t begin, std::int64_t elements) {
  return flat.numel() == elements ? flat.view({-1}) : flat.view({-1}).narrow(0, begin, elements);
}

/// Elements [begin, end) of the shard; neighbours that decay alike are one.
struct Range {
  std::int64_t begin, end;
  bool decays;
};

std::vector<Range> ranges_of(const plan::ParameterUnit& unit, std::int64_t shard_begin,
                             std::int64_t elements) {
  std::vector<Range> ranges;
  for (const plan::Parameter& p : unit.parameters) {
    const std::int64_t begin = std::max<std::int64_t>(p.offset - shard_begin, 0);
    const std::int64_t end =
        std::min(p.offset + elements_of(p.local_shape) - shard_begin, elements);
    if (begin >= end) continue;
    if (!ranges.empty() && ranges.back().end == begin && ranges.back().decays == p.decay)
      ranges.back().end = end;
    else
      ranges.push_back({begin, end, p.decay});
  }
  return ranges;
}

/// The shard's parameters (or masters), gradient and moments.
struct Update {
  at::Tensor p, g, m, v;
  device::AdamWStep step;
};

void update_cpu(const Update& u, const Range& range) {
  device::AdamWStep step = u.step;
  if (!range.decays) step.decay = 1.0F;
  at::parallel_for(range.begin, range.end, 1 << 15, [&](std::int64_t first, std::int64_t last) {
    update_range(u.p.mutable_data_ptr<float>() + first, u.g.const_data_ptr<float>() + first,
                 u.m.mutable_data_ptr<float>() + first, u.v.mutable_data_ptr<float>() + first,
                 last - first, step);
  });
}

/// A unit for a device; `rounded`: the bf16 parameters of masters. A gap between parameters is
/// padding, whose gradient is zero: it takes part and stays as it is.
device::AdamWUnit unit_of_device(const Update& u, const std::vector<Range>& ranges,
                                 const at::Tensor& rounded) {
  device::AdamWUnit unit{.p = u.p.mutable_data_ptr<float>(),
                         .g = u.g.const_data_ptr<float>(),
                         .m = u.m.mutable_data_ptr<float>(),
                         .v = u.v.mutable_data_ptr<float>(),
                         .rounded = rounded.defined() ? rounded.mutable_data_ptr() : nullptr,
                         .elements = u.p.numel(),
                         .ranges = {}};
  device::DecayRanges& of_device = unit.ranges;
  for (const Range& range : ranges) {
    ORRERY_CHECK(of_device.count < device::DecayRanges::kMost, "a unit of {} ranges",
                 ranges.size());
    of_device.end[of_device.count] = range.end;
    of_device.decays[of_device.count++] = range.decays;
  }
  return unit;
}

}  // namespace

void slice(const SegmentShape& s, Phase, Operands& o, SegmentContext& context) {
  const std::int64_t part = (context.local_rank / s.part_stride) % s.parts;
  const std::int64_t length = o.reads[0].size(s.dim) / s.parts;
  o.writes[0].make().copy_(o.reads[0].narrow(s.dim, part * length, length));
}

void zero_gradient(const SegmentShape&, Phase, Operands& o, SegmentContext&) {
  for (Output& w : o.writes) w.make().zero_();
  for (at::Tensor& u : o.updates) u.zero_();
}

void accumulate(const SegmentShape&, Phase, Operands& o, SegmentContext&) {
  o.updates[0].add_(o.reads[0].view(o.updates[0].sizes()));
}

void adamw(const SegmentShape& s, Phase, Operands& o, SegmentContext& context) {
  std::vector<UnitUpdate> alone{{&s, context.unit, context.shard_begin, o}};
  update_units(alone, context);
}

}  // namespace orrery::executor::kernels

namespace orrery::executor {

void update_units(std::vector<UnitUpdate>& updates, const SegmentContext& context) {
  static_assert(device::kMostUnits == plan::kMostJoinedUpdates);
  using namespace kernels;
  const device::AdamWStep step = step_of(context.optimizer, context.update);
  std::vector<device::AdamWUnit> units;
  for (UnitUpdate& update : updates) {
    Operands& o = update.operands;
    const std::int64_t elements = update.shape->elements;
    const at::Tensor parameter = owned(o.updates[0], update.shard_begin, elements);
    const bool has_master = o.updates.size() > 3;
    const Update of_unit{has_master ? o.updates[3] : parameter,
                         owned(o.reads[0], update.shard_begin, elements), o.updates[1],
                         o.updates[2], step};
    const std::vector<Range> ranges = ranges_of(*update.unit, update.shard_begin, elements);
    if (!of_unit.g.is_cpu()) {
      units.push_back(unit_of_device(of_unit, ranges, has_master ? parameter : at::Tensor()));
      continue;
    }
    for (const Range& range : ranges) update_cpu(of_unit, range);
    if (has_master) at::Tensor(parameter).copy_(of_unit.p);
  }
  if (units.empty()) return;
  ORRERY_CHECK(units.size() <= device::kMostUnits, "{} units in a launch", units.size());
  launched(device::adamw(queue_of(updates[0].operands.reads[0]), units.data(), as_int(units.size()),
                         step));
}

}  // namespace orrery::executor
