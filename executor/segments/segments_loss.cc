/// Cross-entropy over a vocabulary shard [T, v], columns being rows [shard v, shard v + v) of the
/// vocabulary:
///
///   m = max x,  z = sum exp(x - m),  loss += scale * sum_t (log z - (x_target - m)),
///   dx = scale * (exp(x - m) / z - [column = target])
///
/// With a soft cap c (Gemma 2) x stands for c tanh(x / c), and dx is times 1 - (x / c)^2 of the
/// capped x; then temporaries are as large as the logits.
/// Masked training (not `causal`, on the CPU): a token with target -1 counts for nothing; the first
/// shard states z = 1 of it, the others 0.
/// Columns at or past the vocabulary are padding: they count as -inf, and their gradient is zero.
/// A device takes each segment in one kernel of ours. The Program reduces m and (z, x_target - m)
/// over the shards between the segments.
#include <ATen/ops/amax.h>
#include <ATen/ops/log.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <limits>

#include "executor/segments/segment_kernels.h"

namespace orrery::executor::kernels {
namespace {

// Exponentials are taken in fp32 for this many elements at a time, which bounds the temporary.
constexpr std::int64_t kChunkElements = 1 << 18;

struct Shard {
  std::int64_t first;    // vocabulary row of column 0
  std::int64_t columns;  // that are no padding
  std::int64_t chunk;    // rows
};

Shard shard_of(const SegmentShape& s, const SegmentContext& context) {
  const std::int64_t first = context.vocabulary_shard * s.out;
  return {first, std::clamp<std::int64_t>(s.vocab - first, 0, s.out),
          std::max<std::int64_t>(1, kChunkElements / s.out)};
}

// Targets as columns of the shard, and which of them are in it (1.0 or 0.0); others point at column
// 0.
struct Targets {
  at::Tensor column, inside;  // [T, 1] int64, [T, 1] fp32
};

Targets targets_of(const at::Tensor& targets, const Shard& shard) {
  at::Tensor column = targets.view({-1, 1}).sub(shard.first);
  const at::Tensor inside = column.ge(0).logical_and_(column.lt(shard.columns));
  column.masked_fill_(inside.logical_not(), 0);
  return {column, inside.to(at::kFloat)};
}

/// [T, 1]: which tokens have a target; 1.0 or 0.0.
at::Tensor trained(const at::Tensor& targets) { return targets.view({-1, 1}).ge(0).to(at::kFloat); }

device::Logits device_logits(const at::Tensor& logits, const Shard& shard) {
  return {numbers_of(logits), logits.size(0), shard.columns, logits.size(1), shard.first};
}

at::Tensor capped(const SegmentShape& s, const at::Tensor& x) {
  return s.cap == 0 ? x : x.to(at::kFloat).div(s.cap).tanh_().mul_(s.cap);
}

}  // namespace

void loss_max(const SegmentShape& s, Phase, Operands& o, SegmentContext& context) {
  const Shard shard = shard_of(s, context);
  at::Tensor m = o.writes[0].make().view({-1});
  if (shard.columns == 0) {
    m.fill_(-std::numeric_limits<float>::infinity());
    return;
  }
  const at::Tensor logits = rows_of(o.reads[0]);
  if (!logits.is_cpu() && s.cap == 0)
    return launched(device::loss_max(queue_of(logits), device_logits(logits, shard),
                                     m.mutable_data_ptr<float>()));
  const at::Tensor x = capped(s, logits.narrow(1, 0, shard.columns));
  if (s.dtype == model::DType::kFloat32)
    at::amax_out(m, x, {1});
  else
    m.copy_(at::amax(x, {1}));
}

void loss_sum(const SegmentShape& s, Phase, Operands& o, SegmentContext& context) {
  const Shard shard = shard_of(s, context);
  at::Tensor& stat = o.writes[0].make();
  if (shard.columns == 0) {
    stat.zero_();
    return;
  }
  const at::Tensor all = rows_of(o.reads[0]);
  if (!all.is_cpu() && s.cap == 0)
    return launched(device::loss_sum(
        queue_of(all), device_logits(all, shard), o.reads[1].const_data_ptr<float>(),
        o.reads[2].const_data_ptr<std::int64_t>(), stat.mutable_data_ptr<float>()));
  const at::Tensor logits = capped(s, all.narrow(1, 0, shard.columns));
  const at::Tensor m = o.reads[1].view({-1, 1});
  at::Tensor sum = stat.view({2, -1}).select(0, 0), target = stat.view({2, -1}).select(0, 1);
  for (std::int64_t row = 0; row < logits.size(0); row += shard.chunk) {
    const std::int64_t rows = std::min(shard.chunk, logits.size(0) - row);
    // bf16 - fp32 is fp32
    at::Tensor x = at::sub(logits.narrow(0, row, rows), m.narrow(0, row, rows));
    at::Tensor part = sum.narrow(0, row, rows);
    at::sum_out(part, x.exp_(), {1});
  }
  if (!s.causal)
    sum.masked_fill_(o.reads[2].view({-1}).lt(0), context.vocabulary_shard == 0 ? 1 : 0);
  const Targets targets = targets_of(o.reads[2], shard);
  target.copy_(
      logits.gather(1, targets.column).to(at::kFloat).sub_(m).mul_(targets.inside).view({-1}));
}

void loss(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  if (phase == Phase::kF) {
    const at::Tensor stat = o.reads[0].view({2, -1});
    o.updates[0].add_(at::log(stat.select(0, 0)).sub_(stat.select(0, 1)).sum(), context.loss_scale);
    return;
  }
  const Shard shard = shard_of(s, context);
  at::Tensor logits = rows_of(o.updates[0]);
  if (!logits.is_cpu() && s.cap == 0)
    return launched(device::loss_gradient(
        queue_of(logits), device_logits(logits, shard), o.reads[0].const_data_ptr<float>(),
        o.reads[1].const_data_ptr<float>(), o.reads[2].const_data_ptr<std::int64_t>(),
        static_cast<float>(context.loss_scale)));
  if (shard.columns < s.out) logits.narrow(1, shard.columns, s.out - shard.columns).zero_();
  if (shard.columns == 0) return;
  at::Tensor valid = logits.narrow(1, 0, shard.columns);
  at::Tensor slope;
  if (s.cap != 0) {
    const at::Tensor x = capped(s, valid);
    slope = x.div(s.cap).square_().neg_().add_(1);
    valid.copy_(x);
  }
  const at::Tensor m = o.reads[0].view({-1, 1});
  at::Tensor factor =
      o.reads[1].view({2, -1}).select(0, 0).reciprocal().mul_(context.loss_scale).unsqueeze(1);
  if (!s.causal) factor.mul_(trained(o.reads[2]));
  for (std::int64_t row = 0; row < valid.size(0); row += shard.chunk) {
    const std::int64_t rows = std::min(shard.chunk, valid.size(0) - row);
    at::Tensor x = valid.narrow(0, row, rows);
    if (s.dtype == model::DType::kFloat32)
      x.sub_(m.narrow(0, row, rows)).exp_().mul_(factor.narrow(0, row, rows));
    else
      x.copy_(at::sub(x, m.narrow(0, row, rows)).exp_().mul_(factor.narrow(0, row, rows)));
  }
  const Targets targets = targets_of(o.reads[2], shard);
  valid.scatter_add_(1, targets.column,
                     targets.inside.mul(-context.loss_scale).to(valid.scalar_type()));
  if (slope.defined()) valid.mul_(slope);
}

}  // namespace orrery::executor::kernels
