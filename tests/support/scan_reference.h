#pragma once
/// A scan written with LibTorch's own operations, for its autograd: Mamba-2 and lightning attention
/// as products with a masked matrix of decays (arXiv 2405.21060, section 3.2; 2501.08313), the
/// delta rule token by token (arXiv 2412.06464, equation 10).
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <vector>

#include "model/scan.h"

namespace orrery::tests {

class ScanReference {
 public:
  ScanReference(const model::SegmentShape& s, const at::Tensor& u, std::vector<at::Tensor> weights,
                std::int64_t layer, std::int64_t layers)
      : s_(s), weights_(std::move(weights)), layer_(layer), layers_(layers), b_(s.sequences) {
    const std::int64_t values = s.heads * s.head_dim, keys = s.kv_heads * s.state;
    std::int64_t at = 0;
    const auto next = [&](std::int64_t columns) {
      at += columns;
      return u.narrow(2, at - columns, columns);
    };
    z_ = next(values);
    at::Tensor convolved = next(values + 2 * keys);
    steps_ = next(s.in - at);
    if (s.kernel > 0) {
      const at::Tensor bias = s.delta ? at::Tensor() : vectors(0, values + 2 * keys);
      convolved = at::conv1d(convolved.transpose(1, 2), weights_[0].view({-1, 1, s.kernel}), bias,
                             1, s.kernel - 1, 1, values + 2 * keys)
                      .narrow(2, 0, s.tokens)
                      .transpose(1, 2);
    }
    convolved = at::silu(convolved);
    x_ = convolved.narrow(2, 0, values).reshape({b_, s.tokens, s.heads, s.head_dim});
    const auto of_heads = [&](std::int64_t first) {
      return convolved.narrow(2, first, keys)
          .reshape({b_, s.tokens, s.kv_heads, s.state})
          .repeat_interleave(s.heads / s.kv_heads, 2);
    };
    keys_ = of_heads(values);
    queries_ = of_heads(values + keys);
  }

  at::Tensor output() {
    if (s_.delta) return delta();
    return model::is_lightning(s_) ? lightning() : mamba();
  }

 private:
  at::Tensor vectors(std::int64_t first, std::int64_t n) const {
    return weights_[1].narrow(0, first, n);
  }
  /// sum_j<=i C_i . B_j e^(sum of ln a over j+1 .. i) x_j;  logs: [b, s, n].
  at::Tensor product(const at::Tensor& logs, const at::Tensor& x) const {
    const at::Tensor sums = logs.cumsum(1).transpose(1, 2);  // [b, n, s]
    const at::Tensor decays = at::exp((sums.unsqueeze(3) - sums.unsqueeze(2)).tril()).tril();
    const at::Tensor scores = at::einsum("bihn,bjhn->bhij", {queries_, keys_});
    return at::einsum("bhij,bjhp->bihp", {scores * decays, x});
  }
  at::Tensor flat(const at::Tensor& y) const { return y.reshape({b_, s_.tokens, -1}); }
  at::Tensor normed(const at::Tensor& y, std::int64_t width) const {
    const at::Tensor rows = y.reshape({b_, s_.tokens, -1, width});
    return flat(rows * at::rsqrt(rows.square().mean(-1, true) + s_.epsilon));
  }

  at::Tensor mamba() {
    const std::int64_t c = model::convolved(s_), n = s_.heads;
    const at::Tensor d = at::softplus(steps_ + vectors(c + 2 * n, n));
    const at::Tensor y = product(-at::exp(vectors(c, n)) * d, x_ * d.unsqueeze(3)) +
                         vectors(c + n, n).view({1, 1, n, 1}) * x_;
    return normed(flat(y) * at::silu(z_), n * s_.head_dim / s_.kv_heads) *
           vectors(c + 3 * n, n * s_.head_dim);
  }

  at::Tensor lightning() {
    std::vector<double> logs;
    for (std::int64_t h = 0; h < s_.heads; ++h)
      logs.push_back(
          -std::pow(2, -8.0 * static_cast<double>(h + 1) / static_cast<double>(s_.heads)) *
          (1 - static_cast<double>(layer_) / (static_cast<double>(layers_) - 1 + 1e-5) + 1e-5));
    const at::Tensor each = at::zeros({b_, s_.tokens, s_.heads}, at::kDouble) +
                            at::from_blob(logs.data(), {s_.heads}, at::kDouble);
    return at::sigmoid(z_) * normed(product(each, x_), s_.out) * weights_[0];
  }

  at::Tensor delta() {
    const std::int64_t n = s_.heads;
    const auto unit = [](const at::Tensor& k) {
      return k * at::rsqrt(k.square().sum(-1, true) + 1e-6);
    };
    const at::Tensor keys = unit(keys_), queries = unit(queries_) / std::sqrt(s_.state);
    const at::Tensor both = steps_.reshape({b_, s_.tokens, n, 2});
    const at::Tensor strength = at::sigmoid(both.select(3, 0));
    const at::Tensor decay =
        at::exp(-at::exp(vectors(0, n)) * at::softplus(both.select(3, 1) + vectors(n, n)));
    at::Tensor state = at::zeros({b_, n, s_.state, s_.head_dim}, at::kDouble);
    std::vector<at::Tensor> rows;
    for (std::int64_t t = 0; t < s_.tokens; ++t) {
      const at::Tensor k = keys.select(1, t).unsqueeze(3);  // [b, n, N, 1]
      state = state * decay.select(1, t).view({b_, n, 1, 1});
      const at::Tensor error =
          x_.select(1, t).unsqueeze(2) - at::matmul(k.transpose(2, 3), state);  // [b, n, 1, P]
      state = state + k * (error * strength.select(1, t).view({b_, n, 1, 1}));
      rows.push_back(at::matmul(queries.select(1, t).unsqueeze(2), state).squeeze(2));
    }
    const at::Tensor y = at::stack(rows, 1);
    return normed(flat(y), s_.head_dim) * weights_[2].repeat({n}) * at::silu(z_);
  }

  model::SegmentShape s_;
  std::vector<at::Tensor> weights_;
  std::int64_t layer_, layers_, b_;
  at::Tensor z_, x_, keys_, queries_, steps_;
};

}  // namespace orrery::tests
