/// The indexer of sparse attention (model::Indexer), written out, a block of queries at a time.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "base/numbers.h"
#include "executor/segments/attention_core.h"

namespace orrery::executor::kernels {
namespace {

constexpr double kNormEpsilon = 1e-6, kInfinity = std::numeric_limits<double>::infinity();

/// [b,s,heads e] as [b,heads,s,e] in fp32, turned by `sign`; not a view.
at::Tensor turned(const SegmentShape& s, const at::Tensor& packed, std::int64_t heads,
                  const RotaryTables::Table& table, double sign) {
  const at::Tensor from =
      packed.to(at::kFloat).view({s.sequences, s.tokens, heads, s.index_dim}).contiguous();
  at::Tensor to = at::empty_like(from);
  rotate(s, to, from, table, sign);
  return to.transpose(1, 2);
}

double scale_of(const SegmentShape& s) { return 1 / std::sqrt(real(s.index_heads * s.index_dim)); }

}  // namespace

at::Tensor QueryBlock::later(const at::TensorOptions& options) const {
  const auto places = options.dtype(at::kLong);
  return at::arange(first_key, end_key, places)
      .unsqueeze(0)
      .gt(at::arange(first, end, places).unsqueeze(1));
}

AttentionIndex::AttentionIndex(const SegmentShape& s, const Operands& o, std::size_t first,
                               const RotaryTables::Table& table)
    : s_(s), table_(table), gain_(o.weights[0].to(at::kFloat)) {
  const at::Tensor keys = o.reads[first + 1].to(at::kFloat);
  const at::Tensor centred = keys.sub(keys.mean(-1, true));
  rstd_ = centred.square().mean(-1, true).add_(kNormEpsilon).rsqrt_();
  normed_ = centred.mul(rstd_);
  q_ = turned(s, o.reads[first], s.index_heads, table, 1);
  k_ = turned(s, normed_.mul(gain_).add_(o.weights[1].to(at::kFloat)), 1, table, 1);
  w_ = o.reads[first + 2].to(at::kFloat).transpose(1, 2).mul(scale_of(s));
  const bool forward = o.reads.size() == first + 3;
  least = forward ? at::full({s.sequences, 1, s.tokens}, -kInfinity, q_.options())
                  : o.reads.back().unsqueeze(1);
  if (forward) return;
  dq_ = at::zeros_like(q_);
  dk_ = at::zeros_like(k_);
  dw_ = at::zeros_like(w_);
}

AttentionIndex::Scores AttentionIndex::scores(const QueryBlock& b) const {
  const at::Tensor products = at::matmul(b.rows(q_), b.keys(k_).transpose(-1, -2)).relu_();
  at::Tensor sums = products.mul(b.rows(w_).unsqueeze(-1)).sum(1);
  if (s_.causal) sums.masked_fill_(b.later(sums.options()), -kInfinity);
  return {products, sums};
}

void AttentionIndex::choose(const QueryBlock& b) {
  if (b.end_key - b.first_key <= s_.top_k) return;  // all of them
  const auto [values, places] = at::topk(scores(b).of_keys, s_.top_k);
  b.rows(least).copy_(values.select(-1, s_.top_k - 1).unsqueeze(1));
}

at::Tensor AttentionIndex::unseen(const QueryBlock& b) const {
  return scores(b).of_keys.unsqueeze(1).lt(b.rows(least).unsqueeze(-1));
}

// d KL(p || softmax(I)) / dI = softmax(I) - p, of the keys chosen.
void AttentionIndex::learn(const QueryBlock& b, const at::Tensor& probabilities, double scale) {
  const auto [products, of_keys] = scores(b);
  const at::Tensor unseen = of_keys.lt(b.rows(least).squeeze(1).unsqueeze(-1));
  const at::Tensor di = at::softmax(of_keys.masked_fill(unseen, -kInfinity), -1)
                            .sub_(probabilities.mean(1))
                            .mul_(scale);
  b.rows(dw_).copy_(products.mul(di.unsqueeze(1)).sum(-1));
  const at::Tensor d =
      di.unsqueeze(1).mul(b.rows(w_).unsqueeze(-1)).masked_fill_(products.le(0), 0);
  b.rows(dq_).copy_(at::matmul(d, b.keys(k_)));
  b.keys(dk_).add_(at::matmul(d.transpose(-1, -2), b.rows(q_)).sum(1, true));
}

void AttentionIndex::write_gradients(Operands& o, std::size_t at) const {
  const auto back = [&](const at::Tensor& turned_one, std::int64_t heads) {
    const at::Tensor packed =
        turned_one.transpose(1, 2).reshape({s_.sequences, s_.tokens, heads * s_.index_dim});
    return turned(s_, packed, heads, table_, -1).transpose(1, 2).reshape(packed.sizes());
  };
  o.writes[at].make().copy_(back(dq_, s_.index_heads));
  o.writes[at + 2].make().copy_(dw_.mul(scale_of(s_)).transpose(1, 2));
  const at::Tensor dy = back(dk_, 1);
  if (!o.gradients.empty()) {
    o.gradients[0].add_(dy.mul(normed_).sum(at::IntArrayRef{0, 1}).view_as(o.gradients[0]));
    o.gradients[1].add_(dy.sum(at::IntArrayRef{0, 1}).view_as(o.gradients[1]));
  }
  const at::Tensor d = dy.mul(gain_);
  const at::Tensor along = d.mul(normed_).mean(-1, true);
  o.writes[at + 1].make().copy_(d.sub(d.mean(-1, true)).sub_(normed_.mul(along)).mul_(rstd_));
}

}  // namespace orrery::executor::kernels
