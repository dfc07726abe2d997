/// Attention inside windows of side r, whose places are the rows of a square (Swin, arXiv
/// 2103.14030, section 3.2): table [n, (2r-1)^2],
///
///   b_ij = table[row i - row j + r - 1, column i - column j + r - 1]
///   s = scale q k^T + b,  lse = log(sum_j e^s),  p = e^(s - lse),  o = p v
///   ds = p (do v^T - do . o);  a bias's gradient is the sum of ds over its places and all windows
///
/// Where they are shifted, s_ij = -inf of tokens of two parts of the image. Tokens lie as
/// ImageWindows has them, log-sum-exps by window.
#include <ATen/ops/arange.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/numbers.h"
#include "executor/segments/attention_core.h"
#include "model/windows.h"

namespace orrery::executor::kernels {
namespace {

/// [w w] int64: which bias of a head the score of query i and key j takes.
at::Tensor differences(const SegmentShape& s, const at::Device& device) {
  const std::int64_t side = model::side_of(s.tokens);
  const at::Tensor place =
                       at::arange(s.tokens, at::TensorOptions().dtype(at::kLong).device(device)),
                   row = at::div(place, side, "floor"), column = at::remainder(place, side);
  const auto difference = [&](const at::Tensor& x) {
    return x.unsqueeze(1).sub(x.unsqueeze(0)).add_(side - 1);
  };
  return difference(row).mul_(2 * side - 1).add_(difference(column)).view({-1});
}

/// Where the tokens of all windows are.
struct Places {
  at::Tensor row;   // [windows w] int64: of the rows of all images
  at::Tensor part;  // [windows w] int64, or undefined where all are of one part
};
Places places_of(const SegmentShape& s, std::int64_t layer, const at::Device& device) {
  const at::TensorOptions numbers = at::TensorOptions().dtype(at::kLong);
  if (s.windows.tokens == 0) return {at::arange(s.token_count(), numbers.device(device)), {}};
  const std::int64_t shift = model::window_shift(s, layer);
  const std::vector<model::WindowPlace> of_image = model::window_places(s, shift);
  const std::int64_t images = s.token_count() / s.windows.tokens;
  Places all{at::empty({s.token_count()}, numbers), {}};
  if (shift > 0) all.part = at::empty({s.token_count()}, numbers);
  std::int64_t* row = all.row.mutable_data_ptr<std::int64_t>();
  std::int64_t* part = shift > 0 ? all.part.mutable_data_ptr<std::int64_t>() : nullptr;
  for (std::int64_t image = 0; image < images; ++image)
    for (const model::WindowPlace& place : of_image) {
      *row++ = image * s.windows.tokens + place.token;
      if (part != nullptr) *part++ = place.part;
    }
  all.row = all.row.to(device);
  if (part != nullptr) all.part = all.part.to(device);
  return all;
}

/// Some windows of all: of [windows, n, w, d] by token [count, n, w, d] fp32 by window, and back.
struct Some {
  const SegmentShape& s;
  const Places& places;
  std::int64_t first, count;

  at::Tensor here(const at::Tensor& x) const {
    return x.narrow(0, first * s.tokens, count * s.tokens);
  }
  at::Tensor of(const at::Tensor& x) const {
    const at::Tensor rows = x.transpose(1, 2).flatten(0, 1).index_select(0, here(places.row));
    at::Tensor by_window =
        at::empty({count, s.heads, s.tokens, rows.size(-1)}, rows.options().dtype(at::kFloat));
    return by_window.copy_(rows.view({count, s.tokens, s.heads, -1}).transpose(1, 2));
  }
  void write(const at::Tensor& rows, const at::Tensor& made) const {
    at::Tensor(rows).index_copy_(
        0, here(places.row),
        made.transpose(1, 2).reshape({count * s.tokens, s.heads, -1}).to(rows.scalar_type()));
  }
};
template <class Visit>
void each_few(const SegmentShape& s, const Places& places, Visit visit) {
  const std::int64_t most = model::windows_at_once(s);
  for (std::int64_t at = 0; at < s.sequences; at += most)
    visit(Some{s, places, at, std::min(most, s.sequences - at)});
}
/// Room for what Some::write() brings, and the same by head.
at::Tensor rows_like(const SegmentShape& s, const at::Tensor& x) {
  return at::empty({s.token_count(), s.heads, x.size(-1)}, x.options());
}
at::Tensor heads_of_rows(const SegmentShape& s, const at::Tensor& rows) {
  return rows.view({s.sequences, s.tokens, s.heads, -1}).transpose(1, 2);
}

/// scale q k^T + b of some windows.
at::Tensor scores_of(const Some& some, const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& biases) {
  const SegmentShape& s = some.s;
  const double scale = s.score_scale == 0 ? 1 / std::sqrt(real(s.head_dim)) : s.score_scale;
  at::Tensor scores = at::matmul(q, k.transpose(-1, -2)).mul_(scale).add_(biases);
  if (!some.places.part.defined()) return scores;
  const at::Tensor part = some.here(some.places.part);
  const at::Tensor apart =
      part.view({some.count, 1, s.tokens, 1}).ne(part.view({some.count, 1, 1, s.tokens}));
  return scores.masked_fill_(apart, -std::numeric_limits<double>::infinity());
}

/// [n, w, w] fp32 of a table [n, (2r-1)^2].
at::Tensor biases_of(const SegmentShape& s, const at::Tensor& table,
                     const at::Tensor& differences) {
  return table.to(at::kFloat).index_select(1, differences).view({s.heads, s.tokens, s.tokens});
}

}  // namespace

AttentionOutputs windows_forward(const SegmentShape& s, std::int64_t layer,
                                 const AttentionInputs& in, const at::Tensor& table) {
  const at::Device device = in.q.device();
  const at::Tensor biases = biases_of(s, table, differences(s, device));
  const Places places = places_of(s, layer, device);
  const at::Tensor o = rows_like(s, in.q);
  at::Tensor lse = at::empty({s.sequences, s.heads, s.tokens}, in.q.options().dtype(at::kFloat));
  each_few(s, places, [&](const Some& some) {
    at::Tensor x = scores_of(some, some.of(in.q), some.of(in.k), biases),
               sum = lse.narrow(0, some.first, some.count);
    at::logsumexp_out(sum, x, {-1});
    x.sub_(sum.unsqueeze(-1)).exp_();
    const at::Tensor made = at::matmul(x, some.of(in.v));
    some.write(o, made);
  });
  return {heads_of_rows(s, o), lse};
}

AttentionGradients windows_backward(const SegmentShape& s, std::int64_t layer,
                                    const AttentionInputs& in, const at::Tensor& d,
                                    const AttentionOutputs& out, const WindowBiases& windows) {
  const double scale = s.score_scale == 0 ? 1 / std::sqrt(real(s.head_dim)) : s.score_scale;
  const at::Tensor difference = differences(s, d.device()),
                   biases = biases_of(s, windows.table, difference),
                   sums = at::zeros({s.heads, s.tokens, s.tokens}, biases.options());
  const Places places = places_of(s, layer, d.device());
  const at::Tensor dq = rows_like(s, in.q), dk = rows_like(s, in.k), dv = rows_like(s, in.v);
  each_few(s, places, [&](const Some& some) {
    const at::Tensor d_o = some.of(d), delta = d_o.mul(some.of(out.o)).sum(-1, true),
                     q = some.of(in.q), k = some.of(in.k);
    at::Tensor p = scores_of(some, q, k, biases);
    p.sub_(out.lse.narrow(0, some.first, some.count).unsqueeze(-1)).exp_();
    some.write(dv, at::matmul(p.transpose(-1, -2), d_o));
    p.mul_(at::matmul(d_o, some.of(in.v).transpose(-1, -2)).sub_(delta));  // ds from here on
    sums.add_(p.sum(0));
    p.mul_(scale);
    some.write(dq, at::matmul(p, k));
    some.write(dk, at::matmul(p.transpose(-1, -2), q));
  });
  if (windows.gradient.defined())
    at::Tensor(windows.gradient).index_add_(1, difference, sums.view({s.heads, -1}));
  return {heads_of_rows(s, dq), heads_of_rows(s, dk), heads_of_rows(s, dv)};
}

}  // namespace orrery::executor::kernels
