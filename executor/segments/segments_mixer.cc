/// Attention written out where no fused kernel does it, norms of queries and keys, and latent
/// attention.
///
///   s = scale q k^T (soft cap: c tanh(s / c); slopes: less slope (i - j)), masked
///   lse = log(sum_j e^s + e^sink),  p = e^(s - lse),  o = p v
///   ds = p (do v^T - do . o), soft cap: times 1 - (s / c)^2
///   dsink = - sum_i e^(sink - lse) do . o
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "base/numbers.h"
#include "executor/segments/attention_core.h"

namespace orrery::executor::kernels {
namespace {

at::Tensor as_float(const at::Tensor& t) { return t.to(at::kFloat); }

std::vector<QueryBlock> query_blocks(const SegmentShape& s, std::int64_t tokens) {
  std::vector<QueryBlock> blocks;
  for (std::int64_t i = 0; i < tokens; i += SegmentShape::kQueryRows) {
    QueryBlock b{i, std::min(tokens, i + SegmentShape::kQueryRows), 0, tokens};
    if (s.causal) b.end_key = b.end;
    if (s.reach > 0)
      b.first_key = s.chunked ? i / s.reach * s.reach : std::max<std::int64_t>(0, i - s.reach + 1);
    blocks.push_back(b);
  }
  return blocks;
}

double scale_of(const SegmentShape& s) {
  return s.score_scale == 0 ? 1 / std::sqrt(real(s.head_dim)) : s.score_scale;
}

/// Scores of a block in fp32, capped but not yet masked, then what the mask and slopes make of
/// them.
struct Scores {
  at::Tensor capped, masked;
};
Scores scores_of(const SegmentShape& s, const QueryBlock& b, const at::Tensor& q,
                 const at::Tensor& k, const ScoreTerms& terms) {
  at::Tensor x = at::matmul(q, k.transpose(-1, -2)).mul_(scale_of(s));
  if (s.score_cap != 0) x.div_(s.score_cap).tanh_().mul_(s.score_cap);
  const auto places = q.options().dtype(at::kLong);
  const at::Tensor i = at::arange(b.first, b.end, places).unsqueeze(1),
                   j = at::arange(b.first_key, b.end_key, places).unsqueeze(0);
  Scores scores{x, x};
  if (terms.slopes.defined())
    scores.masked = x.sub(i.sub(j).to(at::kFloat).mul(terms.slopes.view({1, -1, 1, 1})));
  at::Tensor hidden = s.causal ? j.gt(i) : j.lt(0);
  if (s.reach > 0 && s.chunked)
    hidden = hidden.logical_or(i.floor_divide(s.reach).ne(j.floor_divide(s.reach)));
  else if (s.reach > 0)
    hidden = hidden.logical_or(i.sub(j).ge(s.reach));
  if (terms.index != nullptr) hidden = hidden.logical_or(terms.index->unseen(b));
  scores.masked = scores.masked.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  return scores;
}

/// BLOOM's: 2^(-8 h / n) for a power of two n; else those of the next lower one, then every other
/// of the next higher one (Press et al., arXiv 2108.12409).
double slope_of(std::int64_t head, std::int64_t heads) {
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  if (head < power) return std::exp2(-8.0 * real(head + 1) / real(power));
  return std::exp2(-4.0 * real(2 * (head - power) + 1) / real(power));
}

}  // namespace

ScoreTerms score_terms(const SegmentShape& s, Operands& o, Phase phase,
                       const SegmentContext& context) {
  ScoreTerms terms;
  if (s.sinks) {
    terms.sinks = as_float(o.weights[0]);
    if (has_weight_gradient(phase)) terms.sink_gradients = o.gradients[0];
  }
  if (s.alibi == 0) return terms;
  const std::int64_t first = (context.local_rank / s.part_stride) % s.parts * s.heads;
  std::vector<float> slopes;
  for (std::int64_t h = 0; h < s.heads; ++h)
    slopes.push_back(static_cast<float>(slope_of(first + h, s.alibi)));
  terms.slopes = at::tensor(slopes).to(o.reads[0].device());
  return terms;
}

AttentionOutputs explicit_forward(const SegmentShape& s, const AttentionInputs& in,
                                  const ScoreTerms& terms) {
  const at::Tensor q = as_float(in.q), k = as_float(in.k), v = as_float(in.v);
  at::Tensor o = at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options()),
             lse = at::empty({q.size(0), q.size(1), q.size(2)}, q.options());
  for (const QueryBlock& b : query_blocks(s, q.size(2))) {
    if (terms.index != nullptr) terms.index->choose(b);
    at::Tensor x = scores_of(s, b, b.rows(q), b.keys(k), terms).masked;
    at::Tensor sum = at::logsumexp(x, {-1});
    if (terms.sinks.defined()) sum = at::logaddexp(sum, terms.sinks.view({1, -1, 1}));
    b.rows(lse).copy_(sum);
    x.sub_(sum.unsqueeze(-1)).exp_();
    b.rows(o).copy_(at::matmul(x, b.keys(v)));
  }
  return {o.to(in.q.scalar_type()), lse};
}

AttentionGradients explicit_backward(const SegmentShape& s, const AttentionInputs& in,
                                     const at::Tensor& d, const AttentionOutputs& out,
                                     ScoreTerms& terms) {
  const at::Tensor q = as_float(in.q), k = as_float(in.k), v = as_float(in.v), d_o = as_float(d);
  const at::Tensor delta = d_o.mul(as_float(out.o)).sum(-1, true);
  at::Tensor dq = at::empty_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
  for (const QueryBlock& b : query_blocks(s, q.size(2))) {
    Scores x = scores_of(s, b, b.rows(q), b.keys(k), terms);
    const at::Tensor p = x.masked.sub(b.rows(out.lse).unsqueeze(-1)).exp_();
    if (terms.index != nullptr) terms.index->learn(b, p, terms.index_scale);
    b.keys(dv).add_(at::matmul(p.transpose(-1, -2), b.rows(d_o)));
    at::Tensor ds = at::matmul(b.rows(d_o), b.keys(v).transpose(-1, -2));
    ds.sub_(b.rows(delta)).mul_(p).mul_(scale_of(s));
    if (s.score_cap != 0) ds.mul_(x.capped.div(s.score_cap).square_().neg_().add_(1));
    b.rows(dq).copy_(at::matmul(ds, b.keys(k)));
    b.keys(dk).add_(at::matmul(ds.transpose(-1, -2), b.rows(q)));
  }
  if (terms.sink_gradients.defined()) {
    const at::Tensor share = terms.sinks.view({1, -1, 1}).sub(out.lse).exp_();
    terms.sink_gradients.sub_(share.mul(delta.squeeze(-1)).sum(at::IntArrayRef{0, 2}));
  }
  const auto type = in.q.scalar_type();
  return {dq.to(type), dk.to(type), dv.to(type)};
}

namespace {

/// Queries or keys of qkv, as they are normed together: [b, s, heads, d], or all heads as one.
at::Tensor normed_part(const SegmentShape& s, const at::Tensor& qkv, bool keys) {
  const std::int64_t heads = keys ? s.kv_heads : s.heads;
  const at::Tensor part = heads_of(s, qkv, keys ? s.heads : 0, heads);
  return s.whole ? part.flatten(2).unsqueeze(2) : part;
}

}  // namespace

void head_norm(const SegmentShape& s, Phase phase, Operands& o, SegmentContext&) {
  const at::Tensor& qkv = o.reads[phase == Phase::kF ? 0 : 1];
  at::Tensor& made = o.writes[0].make();
  heads_of(s, made, s.heads + s.kv_heads, s.kv_heads)
      .copy_(heads_of(s, o.reads[0], s.heads + s.kv_heads, s.kv_heads));
  for (const bool keys : {false, true}) {
    const at::Tensor x = as_float(normed_part(s, qkv, keys));
    const at::Tensor rstd = x.square().mean(-1, true).add_(s.epsilon).rsqrt_();
    at::Tensor y = x.mul(rstd);  // before its gain
    const std::size_t at = keys ? 1 : 0;
    const at::Tensor to = heads_of(s, made, keys ? s.heads : 0, keys ? s.kv_heads : s.heads);
    if (phase == Phase::kF) {
      if (s.bias) y.mul_(as_float(o.weights[at]));
      to.copy_(y.reshape(to.sizes()));
      continue;
    }
    at::Tensor dy = as_float(normed_part(s, o.reads[0], keys));
    if (s.bias && has_weight_gradient(phase))
      o.gradients[at].add_(dy.mul(y).sum(at::IntArrayRef{0, 1, 2}).view_as(o.gradients[at]));
    if (s.bias) dy = dy.mul(as_float(o.weights[at]));
    const at::Tensor mean = dy.mul(y).mean(-1, true);
    to.copy_(dy.sub(y.mul_(mean)).mul_(rstd).reshape(to.sizes()));
  }
}

namespace {

/// q and k with their rotated parts, v, by head.
AttentionInputs latent_inputs(const SegmentShape& s, const at::Tensor& q, const at::Tensor& kv,
                              const at::Tensor& rotated_key, SegmentContext& context) {
  const std::int64_t plain = s.head_dim - s.rope_dim, n = s.heads;
  const RotaryTables::Table& table = context.rotary->get(s, q.device());
  const at::Tensor queries = q.view({s.sequences, s.tokens, n, s.head_dim}),
                   both = kv.view({s.sequences, s.tokens, n, plain + s.value_dim}),
                   shared = rotated_key.view({s.sequences, s.tokens, 1, s.rope_dim});
  at::Tensor turned_q = at::empty({s.sequences, s.tokens, n, s.rope_dim}, q.options()),
             turned_k = at::empty_like(shared);
  rotate(s, turned_q, queries.narrow(-1, plain, s.rope_dim), table, 1);
  rotate(s, turned_k, shared, table, 1);
  return {
      at::cat({queries.narrow(-1, 0, plain), turned_q}, -1).transpose(1, 2),
      at::cat({both.narrow(-1, 0, plain), turned_k.expand({-1, -1, n, -1})}, -1).transpose(1, 2),
      both.narrow(-1, plain, s.value_dim).transpose(1, 2)};
}

}  // namespace

void latent_attention(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  const std::size_t first = phase == Phase::kF ? 0 : 1;
  const AttentionInputs in =
      latent_inputs(s, o.reads[first], o.reads[first + 1], o.reads[first + 2], context);
  const RotaryTables::Table& table = context.rotary->get(s, o.reads[0].device());
  ScoreTerms terms;
  std::optional<AttentionIndex> index;
  if (s.index_heads > 0) {
    terms.index = &index.emplace(s, o, first + 3, table);
    terms.index_scale = context.loss_scale;
  }
  const auto values = [&](const at::Tensor& packed) {
    return packed.view({s.sequences, s.tokens, s.heads, s.value_dim}).transpose(1, 2);
  };
  if (phase == Phase::kF) {
    const AttentionOutputs out = explicit_forward(s, in, terms);
    o.writes[0].tensor =
        out.o.transpose(1, 2).reshape({s.sequences, s.tokens, s.heads * s.value_dim});
    o.writes[1].tensor = out.lse;
    if (index) o.writes[2].tensor = index->least.squeeze(1);
    return;
  }
  const std::size_t made = index ? 7 : 4;
  const auto [dq, dk, dv] = explicit_backward(s, in, values(o.reads[0]),
                                              {values(o.reads[made]), o.reads[made + 1]}, terms);
  if (index) index->write_gradients(o, 3);
  const std::int64_t plain = s.head_dim - s.rope_dim, n = s.heads;
  const at::Tensor by_token_q = dq.transpose(1, 2), by_token_k = dk.transpose(1, 2);
  at::Tensor q = o.writes[0].make().view({s.sequences, s.tokens, n, s.head_dim}),
             kv = o.writes[1].make().view({s.sequences, s.tokens, n, plain + s.value_dim}),
             shared = o.writes[2].make().view({s.sequences, s.tokens, 1, s.rope_dim});
  q.narrow(-1, 0, plain).copy_(by_token_q.narrow(-1, 0, plain));
  rotate(s, q.narrow(-1, plain, s.rope_dim), by_token_q.narrow(-1, plain, s.rope_dim), table, -1);
  kv.narrow(-1, 0, plain).copy_(by_token_k.narrow(-1, 0, plain));
  kv.narrow(-1, plain, s.value_dim).copy_(dv.transpose(1, 2));
  rotate(s, shared, by_token_k.narrow(-1, plain, s.rope_dim).sum(2, true), table, -1);
}

}  // namespace orrery::executor::kernels
