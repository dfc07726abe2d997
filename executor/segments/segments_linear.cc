/// Linear layers, weight [out, in]:  y = x W^T (+ b),  dx = dy W,  dW += dy^T x,  db += sum_t dy.
/// A slice of the contraction takes its columns of x, of W and of dx; y is the sum of all slices.
/// Of temporal steps y and dx are the sums. `scale`: of y (no bias, slice or step beside it).
/// In bf16 products are of bf16 and summed in fp32; a weight gradient is then added in fp32, on a
/// device by the product itself, on the CPU rounded to bf16 before, some rows at a time.
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <utility>

#include "executor/segments/segment_kernels.h"
#include "model/rounded_product.h"

namespace orrery::executor::kernels {

void add_bias_gradient(at::Tensor& gradient, const at::Tensor& d) {
  if (d.is_cpu()) {
    gradient.add_(at::sum(d, {0}));
    return;
  }
  ORRERY_CHECK(d.is_contiguous());
  launched(device::add_column_sums(queue_of(d), numbers_of(d), d.size(0), d.size(1),
                                   gradient.mutable_data_ptr<float>()));
}

namespace {

/// gradient += factor round(d^T x), in parts that bound what is rounded.
void add_rounded_product(at::Tensor& gradient, const at::Tensor& d, const at::Tensor& x,
                         double factor) {
  const std::int64_t rows = model::rows_of_rounded_product(gradient.size(0), gradient.size(1));
  for (std::int64_t row = 0; row < gradient.size(0); row += rows) {
    const std::int64_t count = std::min(rows, gradient.size(0) - row);
    gradient.narrow(0, row, count).add_(at::mm(d.narrow(1, row, count).t(), x), factor);
  }
}

at::Tensor gradient_of(const SegmentShape& s, const Operands& o) {
  return o.gradients[0].view({s.out, s.in});
}

}  // namespace

void add_product_gradient(const SegmentShape& s, at::Tensor gradient, const at::Tensor& d,
                          const at::Tensor& x, double factor) {
  if (s.dtype != model::DType::kBFloat16)
    at::addmm_out(gradient, gradient, d.t(), x, 1, factor);
  else if (!d.is_cpu())
    at::addmm_out(gradient, gradient, d.t(), x, at::kFloat, 1, factor);
  else
    add_rounded_product(gradient, d, x, factor);
}

void linear(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  const auto weight = [&] { return o.weights[0].view({s.out, s.in}); };  // G has none
  const auto columns = [&s](const at::Tensor& x) {
    return s.slices == 1 ? x : x.narrow(1, s.slice * s.in, s.in);
  };
  const bool adds = o.writes.empty();  // behind the first slice or temporal step
  const auto made = [&] { return rows_of(adds ? o.updates[0] : o.writes[0].make()); };
  if (phase == Phase::kF) {
    at::Tensor y = made();
    const at::Tensor x = columns(rows_of(o.reads[0]));
    if (adds)
      at::addmm_out(y, y, x, weight().t());
    else if (s.bias)
      at::addmm_out(y, o.weights[1], x, weight().t());
    else
      at::mm_out(y, x, weight().t());
    if (s.scale != 1) y.mul_(s.scale);
    return;
  }
  const at::Tensor dy = rows_of(o.reads[0]);
  if (has_weight_gradient(phase)) {
    add_product_gradient(s, gradient_of(s, o), dy, columns(rows_of(o.reads[1])), s.scale);
    if (s.bias && !context.bias_is_done)
      add_bias_gradient(o.gradients[1], s.scale == 1 ? dy : dy.mul(s.scale));
  }
  if (has_input_gradient(phase)) {
    at::Tensor dx = columns(made());
    if (adds && s.steps > 1) {
      at::addmm_out(dx, dx, dy, weight(), 1, s.scale);
      return;
    }
    at::mm_out(dx, dy, weight());
    if (s.scale != 1) dx.mul_(s.scale);
  }
}

/// t = x A^T,  dx += dt A,  dA += dt^T x.
void adapter_in(const SegmentShape& s, Phase phase, Operands& o, SegmentContext&) {
  const at::Tensor a = o.weights[0].view({s.out, s.in});
  if (phase == Phase::kF) {
    at::Tensor t = rows_of(o.writes[0].make());
    at::mm_out(t, rows_of(o.reads[0]), a.t());
    return;
  }
  const at::Tensor dt = rows_of(o.reads[0]);
  if (has_weight_gradient(phase))
    add_product_gradient(s, gradient_of(s, o), dt, rows_of(o.reads[1]), 1);
  at::Tensor dx = rows_of(o.updates[0]);
  at::addmm_out(dx, dx, dt, a);
}

/// y += scale t B^T,  dt = scale dy B,  dB += scale dy^T t.
void adapter_out(const SegmentShape& s, Phase phase, Operands& o, SegmentContext&) {
  const at::Tensor b = o.weights[0].view({s.out, s.in});
  if (phase == Phase::kF) {
    at::Tensor y = rows_of(o.updates[0]);
    at::addmm_out(y, y, rows_of(o.reads[0]), b.t(), 1, s.scale);
    return;
  }
  const at::Tensor dy = rows_of(o.reads[0]);
  if (has_weight_gradient(phase))
    add_product_gradient(s, gradient_of(s, o), dy, rows_of(o.reads[1]), s.scale);
  at::Tensor dt = rows_of(o.writes[0].make());
  at::mm_out(dt, dy, b);
  dt.mul_(s.scale);
}

void residual(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  if (phase == Phase::kF) {
    if (context.behind != nullptr && !o.reads[0].is_cpu()) {
      Joining* const next = std::exchange(context.behind, nullptr);
      return normed_sum_on_device(o, *next->shape, next->operands);
    }
    at::Tensor& y = o.writes[0].make();
    if (s.bias && !y.is_cpu())
      return launched(device::add_with_bias(queue_of(y), numbers_of(o.reads[0]),
                                            numbers_of(o.reads[1]), numbers_of(o.weights[0]),
                                            numbers_of(y), s.token_count(), s.in));
    at::add_out(y, o.reads[0], o.reads[1]);
    if (s.bias) y.add_(o.weights[0]);
    return;
  }
  if (s.bias && has_weight_gradient(phase)) add_bias_gradient(o.gradients[0], rows_of(o.reads[0]));
}

}  // namespace orrery::executor::kernels
