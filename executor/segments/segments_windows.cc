/// Attention inside windows of side r, whose places are the rows of a square (Swin, arXiv
/// 2103.14030, section 3.2): table [n, (2r-1)^2],
///
///   b_ij = table[row i - row j + r - 1, column i - column j + r - 1]
///   s = scale q k^T + b,  lse = log(sum_j e^s),  p = e^(s - lse),  o = p v
///   ds = p (do v^T - do . o);  a bias's gradient is the sum of ds over its places and all windows
#include <ATen/ops/arange.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "base/numbers.h"
#include "executor/segments/attention_core.h"
#include "model/windows.h"

namespace orrery::executor::kernels {
namespace {

/// [w w] int64: which bias of a head the score of query i and key j takes.
at::Tensor places(const SegmentShape& s, const at::Device& device) {
  const auto side = static_cast<std::int64_t>(std::llround(std::sqrt(real(s.tokens))));
  ORRERY_CHECK(side * side == s.tokens);
  const at::Tensor place =
                       at::arange(s.tokens, at::TensorOptions().dtype(at::kLong).device(device)),
                   row = at::div(place, side, "floor"), column = at::remainder(place, side);
  const auto difference = [&](const at::Tensor& x) {
    return x.unsqueeze(1).sub(x.unsqueeze(0)).add_(side - 1);
  };
  return difference(row).mul_(2 * side - 1).add_(difference(column)).view({-1});
}

/// Some windows of all: [windows, n, w, ..].
struct Some {
  std::int64_t first, count;
  at::Tensor of(const at::Tensor& x) const { return x.narrow(0, first, count); }
};
template <class Visit>
void each_few(const SegmentShape& s, Visit visit) {
  const std::int64_t most = model::windows_at_once(s);
  for (std::int64_t at = 0; at < s.sequences; at += most)
    visit(Some{at, std::min(most, s.sequences - at)});
}

/// scale q k^T + b of some windows in fp32.
at::Tensor scores_of(const SegmentShape& s, const Some& some, const AttentionInputs& in,
                     const at::Tensor& biases) {
  const double scale = s.score_scale == 0 ? 1 / std::sqrt(real(s.head_dim)) : s.score_scale;
  const at::Tensor q = some.of(in.q).to(at::kFloat), k = some.of(in.k).to(at::kFloat);
  return at::matmul(q, k.transpose(-1, -2)).mul_(scale).add_(biases);
}

/// [n, w, w] fp32 of a table [n, (2r-1)^2].
at::Tensor biases_of(const SegmentShape& s, const at::Tensor& table, const at::Tensor& places) {
  return table.to(at::kFloat).index_select(1, places).view({s.heads, s.tokens, s.tokens});
}

}  // namespace

AttentionOutputs windows_forward(const SegmentShape& s, const AttentionInputs& in,
                                 const at::Tensor& table) {
  const at::Tensor biases = biases_of(s, table, places(s, in.q.device()));
  at::Tensor o = at::empty(in.q.sizes(), in.q.options()),
             lse = at::empty({s.sequences, s.heads, s.tokens}, in.q.options().dtype(at::kFloat));
  each_few(s, [&](const Some& some) {
    at::Tensor x = scores_of(s, some, in, biases), sum = some.of(lse);
    at::logsumexp_out(sum, x, {-1});
    x.sub_(sum.unsqueeze(-1)).exp_();
    some.of(o).copy_(at::matmul(x, some.of(in.v).to(at::kFloat)));
  });
  return {o, lse};
}

AttentionGradients windows_backward(const SegmentShape& s, const AttentionInputs& in,
                                    const at::Tensor& d, const AttentionOutputs& out,
                                    const WindowBiases& windows) {
  const double scale = s.score_scale == 0 ? 1 / std::sqrt(real(s.head_dim)) : s.score_scale;
  const at::Tensor place = places(s, d.device()), biases = biases_of(s, windows.table, place),
                   sums = at::zeros({s.heads, s.tokens, s.tokens}, biases.options());
  AttentionGradients made{at::empty_like(in.q), at::empty_like(in.k), at::empty_like(in.v)};
  each_few(s, [&](const Some& some) {
    const at::Tensor d_o = some.of(d).to(at::kFloat), q = some.of(in.q).to(at::kFloat),
                     k = some.of(in.k).to(at::kFloat), v = some.of(in.v).to(at::kFloat);
    const at::Tensor delta = d_o.mul(some.of(out.o)).sum(-1, true);
    at::Tensor p = scores_of(s, some, in, biases);
    p.sub_(some.of(out.lse).unsqueeze(-1)).exp_();
    some.of(made.v).copy_(at::matmul(p.transpose(-1, -2), d_o));
    p.mul_(at::matmul(d_o, v.transpose(-1, -2)).sub_(delta));  // ds from here on
    sums.add_(p.sum(0));
    p.mul_(scale);
    some.of(made.q).copy_(at::matmul(p, k));
    some.of(made.k).copy_(at::matmul(p.transpose(-1, -2), q));
  });
  if (windows.gradient.defined())
    at::Tensor(windows.gradient).index_add_(1, place, sums.view({s.heads, -1}));
  return made;
}

}  // namespace orrery::executor::kernels
