/// Products of quantised operands (executor/quantised/quantised.h), Q for coded and decoded:
///
///   y = Q(x) Q(W)',   dx = Q(dy) Q(W),   dW += Q(dy)' Q(x),   db += sum_t dy
///
/// each coded along what the product sums over: features in forward and for dx, tokens for dW.
/// Products are summed in fp32; y and dx are rounded once, dW is not. An x that a norm or an
/// activation made is there coded by rows: where scales are of blocks, the copy by columns for dW
/// is coded from its decoded numbers, as DeepSeek-V3 does (arXiv 2412.19437, section 3.5.2).
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include "executor/quantised/quantised.h"
#include "executor/segments/segment_kernels.h"

namespace orrery::executor::kernels {
namespace {

using enum ProductOperand;

constexpr std::size_t kLeft = 0, kRight = 1, kResult = 2;  // places of fp32 numbers

/// Whether copies along rows and along columns have the same numbers.
bool same_both_ways(const Coding& c) { return c.block == 0 || c.block == c.rows; }

class QuantisedProduct {
 public:
  QuantisedProduct(const SegmentShape& s, Operands& o, Quantisation& q) : s_(s), o_(o), q_(q) {}

  void forward() {
    const at::Tensor x = columns_of(input()), w = weights(false);
    at::Tensor y = q_.floats(kResult, {x.size(0), s_.out});
    at::mm_out(y, x, w.t());
    if (s_.bias) y.add_(o_.weights[1]);
    if (s_.scale != 1) y.mul_(s_.scale);
    if (o_.writes.empty())
      rows_of(o_.updates[0]).add_(y);
    else
      rows_of(o_.writes[0].make()).copy_(y);
  }

  void backward(Phase phase, const at::Tensor& dy) {
    const float of_tensor = largest(kGradient, dy);
    if (has_weight_gradient(phase)) weight_gradient(dy, of_tensor);
    if (has_input_gradient(phase)) input_gradient(dy, of_tensor);
  }

 private:
  void input_gradient(const at::Tensor& dy, float of_tensor) {
    const at::Tensor d = coded_and_decoded(kGradient, dy, of_tensor, kLeft), w = weights(true);
    at::Tensor dx = q_.floats(kResult, {dy.size(0), s_.in});
    at::mm_out(dx, d, w.t());
    columns_of(rows_of(o_.writes.empty() ? o_.updates[0] : o_.writes[0].make())).copy_(dx);
  }

  void weight_gradient(const at::Tensor& dy, float of_tensor) {
    const at::Tensor d = coded_and_decoded(kGradient, dy.t(), of_tensor, kLeft),
                     x = input_by_columns();
    at::Tensor dw = o_.gradients[0].view({s_.out, s_.in});
    at::addmm_out(dw, dw, d, x.t());
    if (s_.bias) o_.gradients[1].add_(at::sum(dy, {0}, false, at::kFloat));
  }
  /// Of a slice of the contraction.
  at::Tensor columns_of(const at::Tensor& x) const {
    return s_.slices == 1 ? x : x.narrow(1, s_.slice * s_.in, s_.in);
  }
  float largest(ProductOperand operand, const at::Tensor& x) {
    return coding_of(s_.format, operand).of_tensor ? q_.largest(operand, largest_magnitude(x)) : 0;
  }
  at::Tensor decoded(ProductOperand operand, const at::Tensor& bytes, float scale,
                     at::IntArrayRef shape, std::size_t place) {
    at::Tensor x = q_.floats(place, shape);
    dequantise(coding_of(s_.format, operand), bytes, scale, x);
    return x;
  }
  at::Tensor coded_and_decoded(ProductOperand operand, const at::Tensor& x, float of_tensor,
                               std::size_t place) {
    const Coding coding = coding_of(s_.format, operand);
    const at::Tensor bytes = at::empty({x.size(0), coding.row_bytes(x.size(1))}, at::kByte);
    const float scale = quantise(coding, x, of_tensor, bytes);
    return decoded(operand, bytes, scale, x.sizes(), place);
  }

  /// [T, features] for y.
  at::Tensor input() {
    if (s_.quantises_input) {
      const at::Tensor x = rows_of(o_.reads[0]);
      return coded_and_decoded(kInput, x, largest(kInput, x), kLeft);
    }
    return decoded(kInput, o_.reads[0], q_.read_scale, {s_.token_count(), s_.slices * s_.in},
                   kLeft);
  }
  /// [features, T] for dW.
  at::Tensor input_by_columns() {
    if (s_.quantises_input) {
      const at::Tensor x = rows_of(o_.reads[1]);
      return coded_and_decoded(kInput, columns_of(x).t(), largest(kInput, x), kRight);
    }
    const at::Tensor x = columns_of(
        decoded(kInput, o_.reads[1], q_.read_scale, {s_.token_count(), s_.slices * s_.in}, kRight));
    const Coding coding = coding_of(s_.format, kInput);
    if (same_both_ways(coding)) return x.t();
    const at::Tensor bytes = at::empty({x.size(1), coding.row_bytes(x.size(0))}, at::kByte);
    // the tensor's scale is the one it has
    const float scale = quantise(coding, x.t(), q_.read_scale * coding.reach(), bytes);
    return decoded(kInput, bytes, scale, {s_.in, s_.token_count()}, kResult);
  }

  /// [out, in] for y, or [in, out] for dx.
  at::Tensor weights(bool transposed) {
    const at::Tensor w = o_.weights[0].view({s_.out, s_.in}), from = transposed ? w.t() : w;
    if (q_.copies == nullptr) return coded_and_decoded(kWeight, from, largest(kWeight, w), kRight);
    WeightCopies& copies = *q_.copies;
    if (!copies.made) {
      const float of_tensor = largest(kWeight, w);
      const Coding coding = coding_of(s_.format, kWeight);
      copies.scale = quantise(coding, w, of_tensor, copies.rows);
      quantise(coding, w.t(), of_tensor, copies.columns);
      copies.made = true;
    }
    return decoded(kWeight, transposed ? copies.columns : copies.rows, copies.scale, from.sizes(),
                   kRight);
  }

  const SegmentShape& s_;
  Operands& o_;
  Quantisation& q_;
};

}  // namespace

void quantised_linear(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  ORRERY_CHECK(context.quantisation != nullptr);
  QuantisedProduct product(s, o, *context.quantisation);
  if (phase == Phase::kF) return product.forward();
  at::Tensor dy = rows_of(o.reads[0]);
  if (s.scale != 1) dy = dy.mul(s.scale);
  product.backward(phase, dy);
}

void quantised_result(const SegmentShape& s, Kernel* kernel, Operands& o, SegmentContext& context) {
  ORRERY_CHECK(context.quantisation != nullptr);
  Quantisation& q = *context.quantisation;
  Output& out = o.writes[0];
  const model::DType type = out.dtype;
  out.dtype = s.dtype;
  kernel(s, Phase::kF, o, context);
  const at::Tensor made = rows_of(out.tensor);
  out.dtype = type;
  at::Tensor& bytes = out.make();
  const Coding coding = coding_of(s.format, kInput);
  const float largest = coding.of_tensor ? q.largest(kInput, largest_magnitude(made)) : 0;
  q.written_scale = quantise(coding, made, largest, bytes);
}

}  // namespace orrery::executor::kernels
