/// Attention core: o = softmax(q k^T / sqrt(d) + mask) v for every head, and its log-sum-exp, by
/// LibTorch's flash kernels; on a device in bf16 by cuDNN's where LibTorch prefers them.
///
/// qkv is [b, s, (n + 2k) d]: n query heads, then k key heads, then k value heads. Rotary embedding
/// (Su et al., "RoFormer", 2021, in the half-split layout of Hugging Face Llama) turns (x1, x2),
/// the halves of a head, into (x1 cos - x2 sin, x2 cos + x1 sin) at angle position * theta^(-2i/d);
/// it is recomputed in backward, whose gradient turns by the opposite angle. Grouped queries: on a
/// device in bf16 the kernels take k heads as they are; elsewhere keys and values are repeated to n
/// heads, their gradients summed over the group. A causal mask needs
/// tokens by position: where they lie in zig-zag order, q, k and v are copied and o is copied back.
#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/numbers.h"
#include "executor/segments/attention_core.h"
#include "executor/segments/rotary_frequencies.h"
#include "model/launches.h"

namespace orrery::executor {

const RotaryTables::Table& RotaryTables::get(const model::SegmentShape& s,
                                             const at::Device& device) {
  const std::int64_t tokens = s.tokens * s.token_parts;
  const std::int64_t dims = model::rotated_dims(s);
  const Key key{tokens, dims, s.rope_theta, s.token_chunks, s.rope};
  const auto known = std::ranges::find(tables_, key, &std::pair<Key, Table>::first);
  if (known != tables_.end()) return known->second;
  const std::vector<double> frequencies =
      rotary_frequencies(s.rope, s.rope_theta, dims, tokens, factors_);
  const std::int64_t half = dims / 2;
  at::Tensor cos = empty({tokens, half}, model::DType::kFloat32, at::kCPU),
             sin = at::empty_like(cos);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle =
          real(model::position_of(t, s.token_chunks, s.chunk_tokens())) * frequencies[as_index(i)];
      cos.mutable_data_ptr<float>()[t * half + i] =
          static_cast<float>(s.rope.magnitude * std::cos(angle));
      sin.mutable_data_ptr<float>()[t * half + i] =
          static_cast<float>(s.rope.magnitude * std::sin(angle));
    }
  }
  tables_.emplace_back(key, Table{cos.to(device), sin.to(device)});
  return tables_.back().second;
}

namespace kernels {

// Heads [first, first + count) of a packed [b, s, heads * d], as [b, s, count, d]; a view.
at::Tensor heads_of(const SegmentShape& s, const at::Tensor& packed, std::int64_t first,
                    std::int64_t count) {
  return packed.narrow(-1, first * s.head_dim, count * s.head_dim)
      .view({s.sequences, s.tokens, count, s.head_dim});
}

namespace {
device::Heads heads_by_stride(const at::Tensor& t) {
  ORRERY_CHECK(t.stride(3) == 1);
  return {numbers_of(t), t.stride(0), t.stride(1), t.stride(2)};
}
}  // namespace

// to = from turned by the angle of its position (sign 1) or back (sign -1); [b, s, heads, d], not
// in place. What of a head the table does not cover is copied.
void rotate(const SegmentShape&, at::Tensor to, const at::Tensor& from,
            const RotaryTables::Table& table, double sign) {
  const std::int64_t half = table.cos.size(-1), rest = from.size(-1) - 2 * half;
  if (!to.is_cpu() && rest == 0) {
    return launched(device::rotate(queue_of(to), heads_by_stride(to), heads_by_stride(from),
                                   table.cos.const_data_ptr<float>(),
                                   table.sin.const_data_ptr<float>(), to.size(0), to.size(1),
                                   to.size(2), 2 * half, static_cast<float>(sign)));
  }
  if (rest > 0) to.narrow(-1, 2 * half, rest).copy_(from.narrow(-1, 2 * half, rest));
  const auto type = from.scalar_type();
  const at::Tensor cos = table.cos.to(type).view({1, from.size(1), 1, half}),
                   sin = table.sin.to(type).view({1, from.size(1), 1, half});
  const at::Tensor x1 = from.narrow(-1, 0, half), x2 = from.narrow(-1, half, half);
  at::Tensor y1 = to.narrow(-1, 0, half), y2 = to.narrow(-1, half, half);
  at::mul_out(y1, x1, cos);
  y1.addcmul_(x2, sin, -sign);
  at::mul_out(y2, x2, cos);
  y2.addcmul_(x1, sin, sign);
}

namespace {

bool on_device_in_bf16(const SegmentShape& s, const at::Tensor& t) {
  return !t.is_cpu() && s.dtype == model::DType::kBFloat16;
}

// [b, s, k, d] -> [b, s, n, d], each head repeated n / k times (a copy), or the same tensor where
// the kernel takes it so.
at::Tensor repeat_heads(const SegmentShape& s, const at::Tensor& x) {
  if (s.heads == s.kv_heads || (on_device_in_bf16(s, x) && !s.explicit_core())) return x;
  const std::int64_t group = s.heads / s.kv_heads;
  return x.unsqueeze(3)
      .expand({s.sequences, s.tokens, s.kv_heads, group, s.head_dim})
      .reshape({s.sequences, s.tokens, s.heads, s.head_dim});
}

AttentionInputs prepare(const SegmentShape& s, const at::Tensor& qkv, SegmentContext& context) {
  at::Tensor q = heads_of(s, qkv, 0, s.heads), k = heads_of(s, qkv, s.heads, s.kv_heads);
  const at::Tensor v = heads_of(s, qkv, s.heads + s.kv_heads, s.kv_heads);
  if (s.rotary) {
    const RotaryTables::Table& table = context.rotary->get(s, qkv.device());
    const std::int64_t both = s.heads + s.kv_heads;
    const at::Tensor turned = at::empty({s.sequences, s.tokens, both * s.head_dim}, qkv.options());
    rotate(s, heads_of(s, turned, 0, both), heads_of(s, qkv, 0, both), table, 1);
    q = heads_of(s, turned, 0, s.heads);
    k = heads_of(s, turned, s.heads, s.kv_heads);
  }
  return core_inputs(s, q, k, v);
}

/// Pairs of chunks that the rank holds; 0: tokens lie by position.
std::int64_t pairs(const SegmentShape& s) {
  return s.token_chunks == 1 ? 0 : s.token_chunks / 2 / s.token_parts;
}

// The efficient kernel of CUDA pads the log-sum-exp to a multiple of 32 queries.
at::Tensor padded_lse(const at::Tensor& lse) {
  const std::int64_t missing = (32 - lse.size(-1) % 32) % 32;
  return missing == 0
             ? lse
             : at::constant_pad_nd(lse, {0, missing}, std::numeric_limits<double>::infinity());
}

}  // namespace

at::Tensor by_head(const SegmentShape& s, const at::Tensor& packed) {
  return heads_of(s, packed, 0, s.heads).transpose(1, 2);
}

at::Tensor half_of(const SegmentShape& s, const at::Tensor& x, std::int64_t dim, int late) {
  return x.unflatten(dim, {pairs(s), 2, s.chunk_tokens()}).select(dim + 1, late);
}

AttentionInputs core_inputs(const SegmentShape& s, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
  return {q.transpose(1, 2), repeat_heads(s, k).transpose(1, 2),
          repeat_heads(s, v).transpose(1, 2)};
}

namespace {
std::optional<double> scale_of(const SegmentShape& s) {
  return s.score_scale == 0 ? std::nullopt : std::optional(s.score_scale);
}

/// What LibTorch's own scaled_dot_product_attention would take.
bool prefers_cudnn(const SegmentShape& s, const AttentionInputs& in) {
  const std::int64_t choice = at::_fused_sdp_choice(in.q, in.k, in.v, std::nullopt, 0.0, s.causal,
                                                    scale_of(s), s.heads != s.kv_heads);
  return choice == static_cast<std::int64_t>(at::SDPBackend::cudnn_attention);
}
}  // namespace

AttentionOutputs core_forward(const SegmentShape& s, const AttentionInputs& in) {
  if (in.q.is_cpu()) {
    auto [o, lse] = at::_scaled_dot_product_flash_attention_for_cpu(in.q, in.k, in.v, 0.0, s.causal,
                                                                    std::nullopt, scale_of(s));
    return {o, lse};
  }
  if (s.dtype == model::DType::kBFloat16 && prefers_cudnn(s, in)) {
    auto result = at::_scaled_dot_product_cudnn_attention(in.q, in.k, in.v, std::nullopt, true, 0.0,
                                                          s.causal, false, scale_of(s));
    return {std::get<0>(result), std::get<1>(result).view(in.q.sizes().slice(0, 3))};
  }
  if (s.dtype == model::DType::kBFloat16) {
    auto result = at::_scaled_dot_product_flash_attention(in.q, in.k, in.v, 0.0, s.causal, false,
                                                          scale_of(s));
    return {std::get<0>(result), std::get<1>(result)};
  }
  auto result = at::_scaled_dot_product_efficient_attention(in.q, in.k, in.v, std::nullopt, true,
                                                            0.0, s.causal, scale_of(s));
  return {std::get<0>(result), std::get<1>(result).narrow(-1, 0, in.q.size(2)).contiguous()};
}

void write_outputs(const AttentionOutputs& out, Operands& operands) {
  // windows are sequences here, and parts of one there
  operands.writes[0].tensor = out.o.transpose(1, 2).reshape(operands.writes[0].shape);
  operands.writes[1].tensor = out.lse.view(operands.writes[1].shape);
}

// Dropout is off, so the state of its generator is an empty tensor.
AttentionGradients core_backward(const SegmentShape& s, const AttentionInputs& in,
                                 const at::Tensor& d, const AttentionOutputs& out) {
  if (d.is_cpu()) {
    auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        d, in.q, in.k, in.v, out.o, out.lse, 0.0, s.causal, std::nullopt, scale_of(s));
    return {q, k, v};
  }
  const at::Tensor none = at::empty({}, d.options().dtype(at::kLong));
  if (s.dtype == model::DType::kBFloat16 && prefers_cudnn(s, in)) {
    auto [q, k, v] = at::_scaled_dot_product_cudnn_attention_backward(
        d, in.q, in.k, in.v, out.o, out.lse.unsqueeze(-1), none, none, at::Tensor(), at::Tensor(),
        at::Tensor(), in.q.size(2), in.k.size(2), 0.0, s.causal, scale_of(s));
    return {q, k, v};
  }
  if (s.dtype == model::DType::kBFloat16) {
    auto [q, k, v] = at::_scaled_dot_product_flash_attention_backward(
        d, in.q, in.k, in.v, out.o, out.lse, at::Tensor(), at::Tensor(), in.q.size(2), in.k.size(2),
        0.0, s.causal, none, none, scale_of(s));
    return {q, k, v};
  }
  auto result = at::_scaled_dot_product_efficient_attention_backward(
      d, in.q, in.k, in.v, at::Tensor(), out.o, padded_lse(out.lse), none, none, 0.0,
      {true, true, true, false}, s.causal, scale_of(s));
  return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
}

// Gradient of repeat_heads: [b, s, n or k, d] into [b, s, k, d].
void sum_groups(const SegmentShape& s, at::Tensor to, const at::Tensor& from) {
  if (from.size(2) == s.kv_heads) {
    to.copy_(from);
    return;
  }
  at::sum_out(to, from.unflatten(2, {s.kv_heads, s.heads / s.kv_heads}), {3});
}

namespace {

/// Tokens along `dim` from the order in which they lie (zig-zag, model/segment.h) to that of their
/// positions, and back: the same tensor where the rank holds one pair of chunks.
at::Tensor to_positions(const SegmentShape& s, const at::Tensor& x, std::int64_t dim) {
  if (pairs(s) <= 1) return x;
  return at::cat({half_of(s, x, dim, 0), half_of(s, x, dim, 1).flip({dim})}, dim)
      .flatten(dim, dim + 1);
}

at::Tensor from_positions(const SegmentShape& s, const at::Tensor& x, std::int64_t dim) {
  if (pairs(s) <= 1) return x;
  const at::Tensor halves = x.unflatten(dim, {2, pairs(s), s.chunk_tokens()});
  return at::stack({halves.select(dim, 0), halves.select(dim, 1).flip({dim})}, dim + 1)
      .flatten(dim, dim + 2);
}

AttentionInputs by_position(const SegmentShape& s, const AttentionInputs& in) {
  return {to_positions(s, in.q, 2), to_positions(s, in.k, 2), to_positions(s, in.v, 2)};
}

}  // namespace

AttentionOutputs masked_forward(const SegmentShape& s, const AttentionInputs& in) {
  const AttentionOutputs out = core_forward(s, by_position(s, in));
  return {from_positions(s, out.o, 2), from_positions(s, out.lse, 2)};
}

AttentionGradients masked_backward(const SegmentShape& s, const AttentionInputs& in,
                                   const at::Tensor& d, const AttentionOutputs& out) {
  const auto [q, k, v] =
      core_backward(s, by_position(s, in), to_positions(s, d, 2),
                    {to_positions(s, out.o, 2), to_positions(s, out.lse, 2).contiguous()});
  return {from_positions(s, q, 2), from_positions(s, k, 2), from_positions(s, v, 2)};
}

namespace {

/// dqkv of gradients by head, q's and k's turned back; with the bias gradient of what made qkv.
void pack_on_device(const SegmentShape& s, const AttentionGradients& from, at::Tensor& dqkv,
                    SegmentContext& context) {
  const auto of_keys = [&](const at::Tensor& by_head) {
    const at::Tensor by_token = by_head.transpose(1, 2);
    if (by_token.size(2) == s.kv_heads) return by_token;
    at::Tensor sums = at::empty({s.sequences, s.tokens, s.kv_heads, s.head_dim}, dqkv.options());
    sum_groups(s, sums, by_token);
    return sums;
  };
  const at::Tensor q = from.q.transpose(1, 2), k = of_keys(from.k), v = of_keys(from.v);
  device::HeadsToPack heads{.q = heads_by_stride(q),
                            .k = heads_by_stride(k),
                            .v = heads_by_stride(v),
                            .batch = s.sequences,
                            .tokens = s.tokens,
                            .heads = s.heads,
                            .kv_heads = s.kv_heads,
                            .head_dim = s.head_dim};
  if (s.rotary) {
    const RotaryTables::Table& table = context.rotary->get(s, dqkv.device());
    heads.cos = table.cos.const_data_ptr<float>();
    heads.sin = table.sin.const_data_ptr<float>();
  }
  at::Tensor partial;
  float* sums = nullptr;
  device::Arrivals arrivals;
  const Joining* const next = std::exchange(context.behind, nullptr);
  if (next != nullptr) {
    sums = bias_gradient_of(*next, dqkv.size(-1));
    partial = partials(device::pack_partials(heads, dqkv.scalar_type() == at::kBFloat16), dqkv);
    arrivals = arrivals_of(context, partial);
  }
  launched(device::pack_heads(queue_of(dqkv), heads, numbers_of(dqkv), sums, arrivals));
}

AttentionOutputs whole_forward(const SegmentShape& s, Operands& o, SegmentContext& context) {
  const AttentionInputs in = prepare(s, o.reads[0], context);
  if (s.weights > 0) return windows_forward(s, context.layer, in, o.weights[0]);
  if (s.explicit_core()) return explicit_forward(s, in, score_terms(s, o, Phase::kF, context));
  return masked_forward(s, in);
}

AttentionGradients whole_backward(const SegmentShape& s, Phase phase, Operands& o,
                                  SegmentContext& context) {
  const AttentionInputs in = prepare(s, o.reads[1], context);
  const at::Tensor d = by_head(s, o.reads[0]);
  const AttentionOutputs out{by_head(s, o.reads[2]),
                             o.reads[3].view({s.sequences, s.heads, s.tokens})};
  if (s.weights > 0) {
    const bool trained = has_weight_gradient(phase);
    return windows_backward(s, context.layer, in, d, out,
                            {o.weights[0], trained ? o.gradients[0] : at::Tensor{}});
  }
  if (!s.explicit_core()) return masked_backward(s, in, d, out);
  ScoreTerms terms = score_terms(s, o, phase, context);
  return explicit_backward(s, in, d, out, terms);
}

}  // namespace

void attention(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  if (phase == Phase::kF) return write_outputs(whole_forward(s, o, context), o);
  const auto [dq, dk, dv] = whole_backward(s, phase, o, context);
  at::Tensor& dqkv = o.writes[0].make();
  if (!dqkv.is_cpu() && model::packs_heads(s))
    return pack_on_device(s, {dq, dk, dv}, dqkv, context);
  at::Tensor to_q = heads_of(s, dqkv, 0, s.heads), to_k = heads_of(s, dqkv, s.heads, s.kv_heads);
  sum_groups(s, heads_of(s, dqkv, s.heads + s.kv_heads, s.kv_heads), dv.transpose(1, 2));
  if (!s.rotary) {
    to_q.copy_(dq.transpose(1, 2));
    sum_groups(s, to_k, dk.transpose(1, 2));
    return;
  }
  const RotaryTables::Table& table = context.rotary->get(s, dqkv.device());
  rotate(s, to_q, dq.transpose(1, 2), table, -1);
  if (dk.size(1) == s.kv_heads) {
    rotate(s, to_k, dk.transpose(1, 2), table, -1);
    return;
  }
  at::Tensor summed = at::empty(to_k.sizes(), to_k.options());
  sum_groups(s, summed, dk.transpose(1, 2));
  rotate(s, to_k, summed, table, -1);
}

}  // namespace kernels
}  // namespace orrery::executor
