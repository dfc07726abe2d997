/// Layer norm:  y = (x - mean) r w + b,  r = (var + eps)^-1/2, by LibTorch's fused kernels.
/// RMS norm:    y = x r w,               r = (mean(x^2) + eps)^-1/2, written out here:
///   dw = sum_t dy x r,   dx = r (dy w) - x r^3 / h * sum(dy w x).
/// A layer norm may have no gain (OLMo) or bias (Command R): then w is 1, b 0.
/// Patch merging norms neighbouring tokens as one: rows of `in` numbers, whatever the tokens read.
/// Statistics are fp32 in both precisions. A device has kernels of ours for both norms and types.
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "executor/segments/segment_kernels.h"

namespace orrery::executor::kernels {
namespace {

bool is_bf16(const SegmentShape& s) { return s.dtype == model::DType::kBFloat16; }

// The tensor itself where it is fp32.
at::Tensor as_float(const at::Tensor& t) { return t.to(at::kFloat); }

// [b, s, in] of what may be [b, 4 s, in / 4].
at::Tensor tokens_of(const SegmentShape& s, const at::Tensor& t) {
  return as_float(t).view({s.sequences, s.tokens, s.in});
}

struct LayerNormWeights {
  at::Tensor gain, bias;  // undefined: none
};
LayerNormWeights weights_of(const SegmentShape& s, const Operands& o) {
  return {s.gain ? as_float(o.weights[0]) : at::Tensor{},
          s.norm_bias ? as_float(o.weights.back()) : at::Tensor{}};
}

// The functional form: LibTorch's out= form on the CPU makes its results elsewhere and copies them.
void layer_norm_forward(const SegmentShape& s, Operands& o) {
  const auto [gain, bias] = weights_of(s, o);
  auto [y, mean, rstd] =
      at::native_layer_norm(tokens_of(s, o.reads[0]), {s.in}, gain, bias, s.epsilon);
  o.writes[0].tensor = y.to(scalar_type(s.dtype)).view(o.writes[0].shape);
  o.writes[1].tensor = mean.view({-1});
  o.writes[2].tensor = rstd.view({-1});
}

void layer_norm_backward(const SegmentShape& s, Phase phase, Operands& o) {
  const at::Tensor mean = o.reads[2].view({s.sequences, s.tokens, 1});
  const at::Tensor rstd = o.reads[3].view({s.sequences, s.tokens, 1});
  const bool weights = has_weight_gradient(phase), input = has_input_gradient(phase),
             of_gain = weights && s.gain, of_bias = weights && s.norm_bias;
  const auto [gain, bias] = weights_of(s, o);
  auto [dx, dw, db] =
      at::native_layer_norm_backward(tokens_of(s, o.reads[0]), tokens_of(s, o.reads[1]), {s.in},
                                     mean, rstd, gain, bias, {input, of_gain, of_bias});
  if (of_gain) o.gradients[0].add_(dw);
  if (of_bias) o.gradients.back().add_(db);
  if (!input) return;
  if (s.residual) dx.add_(o.reads[4]);
  o.writes[0].tensor = dx.to(scalar_type(s.dtype)).view(o.writes[0].shape);
}

// [T, in], likewise.
at::Tensor tokens_in_rows(const SegmentShape& s, const at::Tensor& t) { return t.view({-1, s.in}); }

void rms_norm_forward(const SegmentShape& s, Operands& o) {
  at::Tensor x = tokens_in_rows(s, o.reads[0]);
  at::Tensor rstd = o.writes[1].make().view({-1});
  at::linalg_vector_norm_out(rstd, x, 2, at::IntArrayRef{1}, false, at::kFloat);
  rstd.square_().div_(real(s.in)).add_(s.epsilon).rsqrt_();
  at::Tensor y = tokens_in_rows(s, o.writes[0].make());
  if (is_bf16(s)) {
    at::Tensor wide = x.to(at::kFloat);
    y.copy_(wide.mul_(rstd.unsqueeze(1)).mul_(o.weights[0]));
    return;
  }
  at::mul_out(y, x, rstd.unsqueeze(1));
  y.mul_(o.weights[0]);
}

void rms_norm_backward(const SegmentShape& s, Phase phase, Operands& o) {
  const bool wide = is_bf16(s);
  const at::Tensor dy = as_float(tokens_in_rows(s, o.reads[0])),
                   x = as_float(tokens_in_rows(s, o.reads[1])), w = as_float(o.weights[0]);
  const at::Tensor rstd = o.reads[2].view({-1});
  at::Tensor product = at::mul(dy, x);
  if (has_weight_gradient(phase)) o.gradients[0].addmv_(product.t(), rstd);
  if (!has_input_gradient(phase)) return;
  at::Tensor c = at::mv(product, w);  // sum over features of dy w x
  c.mul_(rstd).mul_(rstd).mul_(rstd).div_(real(s.in));
  at::Tensor dx = wide ? product : tokens_in_rows(s, o.writes[0].make());
  at::mul_out(dx, dy, w);
  dx.mul_(rstd.unsqueeze(1)).addcmul_(x, c.unsqueeze(1), -1);
  if (s.residual) dx.add_(tokens_in_rows(s, o.reads[3]));
  if (wide) tokens_in_rows(s, o.writes[0].make()).copy_(dx);
}

bool is_layer(const SegmentShape& s) { return s.norm == model::NormKind::kLayerNorm; }

bool has_bias(const SegmentShape& s) { return is_layer(s) && s.norm_bias; }

device::NormRows device_rows(const SegmentShape& s, const Operands& o, const at::Tensor& gain,
                             const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd) {
  return {.x = numbers_of(x),
          .gain = numbers_of(gain),
          .bias = has_bias(s) ? numbers_of(o.weights.back()) : device::Numbers{},
          .mean = is_layer(s) ? mean.mutable_data_ptr<float>() : nullptr,
          .rstd = rstd.mutable_data_ptr<float>(),
          .rows = s.token_count(),
          .features = s.in};
}

void norm_on_device(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  const device::Queue queue = queue_of(o.reads[0]);
  const at::Tensor gain = s.gain ? o.weights[0] : at::ones({s.in}, o.reads[0].options());
  if (phase == Phase::kF) {
    for (Output& out : o.writes) out.make();
    return launched(device::norm(queue,
                                 device_rows(s, o, gain, o.reads[0], o.writes[1].tensor,
                                             o.writes[is_layer(s) ? 2 : 1].tensor),
                                 numbers_of(o.writes[0].tensor), s.epsilon));
  }
  const std::size_t rstd = is_layer(s) ? 3 : 2;
  const device::NormRows rows = device_rows(s, o, gain, o.reads[1], o.reads[2], o.reads[rstd]);
  const device::Numbers dy = numbers_of(o.reads[0]);
  const device::Numbers residual = s.residual ? numbers_of(o.reads[rstd + 1]) : device::Numbers{};
  ORRERY_CHECK(has_input_gradient(phase), "a norm has no gradients apart");
  at::Tensor& dx = o.writes[0].make();
  device::NormGradients gradients;
  if (has_weight_gradient(phase) && s.gain) {
    gradients.gain = o.gradients[0].mutable_data_ptr<float>();
    if (has_bias(s)) gradients.bias = o.gradients.back().mutable_data_ptr<float>();
    const Joining* const next = std::exchange(context.behind, nullptr);
    if (next != nullptr) gradients.behind = bias_gradient_of(*next, s.in);
  }
  const at::Tensor partial = partials(device::norm_partials(rows, gradients), dx);
  launched(device::norm_backward(queue, rows, dy, residual, numbers_of(dx), gradients,
                                 arrivals_of(context, partial)));
}

}  // namespace

/// The residual's sum and its norm, whose operands have no reads.
void normed_sum_on_device(Operands& sum, const SegmentShape& s, Operands& o) {
  const at::Tensor& to = sum.writes[0].make();
  const at::Tensor &x = sum.reads[0], &p = sum.reads[1];
  for (Output& out : o.writes) out.make();
  const device::Addends addends{
      numbers_of(x), numbers_of(p),
      sum.weights.empty() ? device::Numbers{} : numbers_of(sum.weights[0])};
  launched(device::norm_of_sum(
      queue_of(to),
      device_rows(s, o, o.weights[0], to, o.writes[1].tensor, o.writes[is_layer(s) ? 2 : 1].tensor),
      addends, numbers_of(o.writes[0].tensor), s.epsilon));
}

float* bias_gradient_of(const Joining& next, std::int64_t columns) {
  const at::Tensor& gradient = next.operands.gradients.back();
  ORRERY_CHECK(gradient.numel() == columns, "{} sums for a bias of {}", columns, gradient.numel());
  return gradient.mutable_data_ptr<float>();
}

device::Arrivals arrivals_of(SegmentContext& context, const at::Tensor& partial) {
  if (!context.arrived.defined())
    context.arrived = at::zeros({device::Arrivals::kMost}, partial.options().dtype(at::kInt));
  return {partial.mutable_data_ptr<float>(),
          reinterpret_cast<unsigned*>(context.arrived.mutable_data_ptr<int>())};
}

at::Tensor partials(std::int64_t numbers, const at::Tensor& like) {
  return at::empty({numbers}, like.options().dtype(at::kFloat));
}

void norm(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  if (!o.reads[0].is_cpu()) return norm_on_device(s, phase, o, context);
  const bool layer = is_layer(s);
  if (phase == Phase::kF) return layer ? layer_norm_forward(s, o) : rms_norm_forward(s, o);
  return layer ? layer_norm_backward(s, phase, o) : rms_norm_backward(s, phase, o);
}

}  // namespace orrery::executor::kernels
