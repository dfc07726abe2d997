/// Segments of partitioned operators (model/partitioned_sizes.h): a bias by itself, a norm whose
/// features lie on several devices, and attention with its scores kept.
///
/// Norm of H features, of which the rank has some: s = sums over all features.
///   layer  mean = s_0 / H,  r = (s_1 / H - mean^2 + eps)^-1/2,  y' = (x - mean) r,  y = y' w + b
///   RMS    r = (s_0 / H + eps)^-1/2,                            y' = x r,           y = y' w
///   dx = r (dy w - [layer] sum(dy w) / H - y' sum(dy w y') / H),  dw = sum_t dy y'
///
/// Heads: q [b, s, n d] as [b k, g s, d] with g = n / k queries to a key head, so that grouped
/// queries share their keys without copies of these.
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/div.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/triu.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/numbers.h"
#include "executor/segments/attention_core.h"
#include "executor/segments/segment_kernels.h"

namespace orrery::executor::kernels {
namespace {

at::Tensor as_float(const at::Tensor& t) { return t.to(at::kFloat); }
bool is_layer(const SegmentShape& s) { return s.norm == model::NormKind::kLayerNorm; }

/// The statistics behind `first` among the operands, as columns.
struct Statistics {
  at::Tensor mean, rstd;
  Statistics(const SegmentShape& s, const Operands& o, std::size_t first) {
    if (is_layer(s)) mean = o.reads[first].view({-1, 1});
    rstd = o.reads[first + (is_layer(s) ? 1 : 0)].view({-1, 1});
  }
  [[nodiscard]] at::Tensor centred(const at::Tensor& x) const {
    return mean.defined() ? at::sub(x, mean) : x;
  }
};

}  // namespace

void bias(const SegmentShape&, Phase phase, Operands& o, SegmentContext&) {
  if (phase == Phase::kF) {
    o.updates[0].add_(o.weights[0]);
    return;
  }
  o.gradients[0].add_(at::sum(rows_of(o.reads[0]), {0}));
}

void norm_sums(const SegmentShape& s, Phase phase, Operands& o, SegmentContext&) {
  const std::int64_t vectors = is_layer(s) ? 2 : 1;
  at::Tensor sums = o.writes[0].make().view({vectors, -1}), last = sums.select(0, vectors - 1);
  at::Tensor first = sums.select(0, 0);
  if (phase == Phase::kF) {
    const at::Tensor x = rows_of(o.reads[0]);
    at::linalg_vector_norm_out(last, x, 2, at::IntArrayRef{1}, false, at::kFloat);
    last.square_();
    if (is_layer(s)) at::sum_out(first, x, {1}, false, at::kFloat);
    return;
  }
  const at::Tensor dy = as_float(rows_of(o.reads[0])), x = rows_of(o.reads[1]),
                   w = as_float(o.weights[0]);
  const Statistics statistics(s, o, 2);
  last.copy_(at::mv(at::mul(statistics.centred(as_float(x)), dy), w));
  last.mul_(statistics.rstd.view({-1}));
  if (is_layer(s)) first.copy_(at::mv(dy, w));
}

namespace {

void norm_apply_forward(const SegmentShape& s, Operands& o) {
  const double features = real(s.out);
  const at::Tensor x = rows_of(o.reads[0]);
  const std::int64_t vectors = is_layer(s) ? 2 : 1;
  const at::Tensor sums = o.reads[1].view({vectors, -1});
  at::Tensor rstd = o.writes[as_index(vectors)].make().view({-1});
  rstd.copy_(sums.select(0, vectors - 1)).div_(features);
  at::Tensor mean;
  if (is_layer(s)) {
    mean = o.writes[1].make().view({-1});
    mean.copy_(sums.select(0, 0)).div_(features);
    rstd.addcmul_(mean, mean, -1).clamp_min_(0);
  }
  rstd.add_(s.epsilon).rsqrt_();
  at::Tensor y = rows_of(o.writes[0].make());
  const bool wide = s.dtype == model::DType::kBFloat16;
  at::Tensor work = wide ? x.to(at::kFloat) : y;
  if (!wide) work.copy_(x);
  if (mean.defined()) work.sub_(mean.unsqueeze(1));
  work.mul_(rstd.unsqueeze(1)).mul_(o.weights[0]);
  if (is_layer(s)) work.add_(o.weights[1]);
  if (wide) y.copy_(work);
}

void norm_apply_backward(const SegmentShape& s, Phase phase, Operands& o) {
  const double features = real(s.out);
  const Statistics statistics(s, o, 2);
  const std::int64_t vectors = is_layer(s) ? 2 : 1;
  const at::Tensor dy = as_float(rows_of(o.reads[0]));
  const at::Tensor sums = o.reads[as_index(3 + vectors) - 1].view({vectors, -1});
  const at::Tensor x = statistics.centred(as_float(rows_of(o.reads[1])));
  const at::Tensor normal = at::mul(x, statistics.rstd);
  if (has_weight_gradient(phase)) {
    o.gradients[0].add_(at::sum(at::mul(dy, normal), {0}));
    if (is_layer(s)) o.gradients[1].add_(at::sum(dy, {0}));
  }
  if (!has_input_gradient(phase)) return;
  const bool wide = s.dtype == model::DType::kBFloat16;
  at::Tensor out = rows_of(o.writes[0].make()), dx = wide ? dy : out;
  at::mul_out(dx, dy, as_float(o.weights[0]));
  if (is_layer(s)) dx.sub_(at::div(sums.select(0, 0), features).unsqueeze(1));
  dx.addcmul_(normal, sums.select(0, vectors - 1).unsqueeze(1), -1 / features);
  dx.mul_(statistics.rstd);
  if (s.residual) dx.add_(rows_of(o.reads[as_index(3 + vectors)]));
  if (wide) out.copy_(dx);
}

}  // namespace

void norm_apply(const SegmentShape& s, Phase phase, Operands& o, SegmentContext&) {
  if (phase == Phase::kF) return norm_apply_forward(s, o);
  norm_apply_backward(s, phase, o);
}

// ---- attention ----

namespace {

/// Tokens or keys of the rank's slice: how many, and the place of the first.
struct Slice {
  std::int64_t count = 0, first = 0, whole = 0;
  Slice(std::int64_t own, std::uint32_t bits, int local_rank)
      : count(own),
        first(own * extract_bits(as_u32(local_rank), bits)),
        whole(own << std::popcount(bits)) {}
};
Slice tokens_of(const SegmentShape& s, const SegmentContext& c) {
  return {s.tokens, s.token_bits, c.local_rank};
}
Slice keys_of(const SegmentShape& s, const SegmentContext& c) {
  return {s.kv_tokens, s.key_bits, c.local_rank};
}

RotaryTables::Table angles(const SegmentShape& s, const Slice& slice, SegmentContext& context,
                           const at::Device& device) {
  SegmentShape whole = s;
  whole.tokens = slice.whole;
  const RotaryTables::Table& table = context.rotary->get(whole, device);
  return {table.cos.narrow(0, slice.first, slice.count),
          table.sin.narrow(0, slice.first, slice.count)};
}

/// Heads of [b, t, heads d] in front: [b k, heads / k * t, d]; a copy, turned by its positions.
at::Tensor heads_first(const SegmentShape& s, const at::Tensor& packed, const Slice& slice,
                       SegmentContext& context) {
  const std::int64_t heads = packed.size(-1) / s.head_dim;
  const at::Tensor from = packed.view({s.sequences, slice.count, heads, s.head_dim});
  at::Tensor copy = at::empty({s.sequences, heads, slice.count, s.head_dim}, packed.options());
  const at::Tensor to = copy.transpose(1, 2);
  if (s.rotary)
    rotate(s, to, from, angles(s, slice, context, packed.device()), 1);
  else
    to.copy_(from);
  return copy.view({s.sequences * s.kv_heads, -1, s.head_dim});
}

/// Back into [b, t, heads d].
void heads_last(const SegmentShape& s, const at::Tensor& from, at::Tensor& packed,
                const Slice& slice, SegmentContext& context) {
  const std::int64_t heads = packed.size(-1) / s.head_dim;
  const at::Tensor by_head =
      from.view({s.sequences, heads, slice.count, s.head_dim}).transpose(1, 2);
  const at::Tensor to = packed.view({s.sequences, slice.count, heads, s.head_dim});
  if (s.rotary)
    rotate(s, to, by_head, angles(s, slice, context, packed.device()), -1);
  else
    to.copy_(by_head);
}

/// Scores [b, n, s, K] as [b k, g s, K].
at::Tensor by_key_head(const SegmentShape& s, const at::Tensor& scores) {
  return scores.view({s.sequences * s.kv_heads, s.heads / s.kv_heads * s.tokens, s.kv_tokens});
}

}  // namespace

void scores(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& c) {
  const double scale = 1 / std::sqrt(real(s.head_dim));
  const Slice tokens = tokens_of(s, c), keys = keys_of(s, c);
  if (phase == Phase::kF) {
    const at::Tensor q = heads_first(s, o.reads[0], tokens, c),
                     k = heads_first(s, o.reads[1], keys, c);
    at::Tensor out = by_key_head(s, o.writes[0].make());
    at::bmm_out(out, q, k.transpose(1, 2));
    out.mul_(scale);
    return;
  }
  const at::Tensor d = by_key_head(s, o.reads[0]);
  if (phase == Phase::kB) {
    at::Tensor dq = at::bmm(d, heads_first(s, o.reads[1], keys, c));
    heads_last(s, dq.mul_(scale), o.writes[0].make(), tokens, c);
    return;
  }
  at::Tensor dk = at::bmm(d.transpose(1, 2), heads_first(s, o.reads[1], tokens, c));
  heads_last(s, dk.mul_(scale), o.writes[0].make(), keys, c);
}

void softmax(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& c) {
  if (phase == Phase::kB) {
    o.writes[0].tensor =
        at::_softmax_backward_data(o.reads[0], o.reads[1], -1, o.reads[0].scalar_type());
    return;
  }
  if (!s.causal) {
    o.writes[0].tensor = at::_softmax(o.reads[0], -1, false);
    return;
  }
  const Slice tokens = tokens_of(s, c);
  const at::Tensor later = at::ones({s.tokens, s.kv_tokens}, o.reads[0].options().dtype(at::kBool))
                               .triu_(tokens.first + 1);
  o.writes[0].tensor = at::_softmax(
      at::masked_fill(o.reads[0], later, -std::numeric_limits<double>::infinity()), -1, false);
}

void values(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& c) {
  const Slice tokens = tokens_of(s, c), keys = keys_of(s, c);
  if (phase == Phase::kF) {
    const at::Tensor out = at::bmm(by_key_head(s, o.reads[0]), heads_first(s, o.reads[1], keys, c));
    heads_last(s, out, o.writes[0].make(), tokens, c);
    return;
  }
  const at::Tensor d = heads_first(s, o.reads[0], tokens, c);
  if (phase == Phase::kB) {
    at::Tensor da = by_key_head(s, o.writes[0].make());
    at::bmm_out(da, d, heads_first(s, o.reads[1], keys, c).transpose(1, 2));
    return;
  }
  const at::Tensor dv = at::bmm(by_key_head(s, o.reads[1]).transpose(1, 2), d);
  heads_last(s, dv, o.writes[0].make(), keys, c);
}

}  // namespace orrery::executor::kernels
