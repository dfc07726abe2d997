/// g = act(u), or g = act(gate) * up, with gate and up the halves of u along the features, or each
/// an operand; backward writes into the same of du.
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold_backward.h>

#include "executor/segments/segment_kernels.h"

namespace orrery::executor::kernels {
namespace {

void apply(model::Activation activation, at::Tensor& out, const at::Tensor& u) {
  switch (activation) {
    case model::Activation::kGelu: at::gelu_out(out, u, "none"); return;
    case model::Activation::kGeluTanh: at::gelu_out(out, u, "tanh"); return;
    case model::Activation::kSilu: at::silu_out(out, u); return;
    case model::Activation::kRelu: at::clamp_min_out(out, u, 0); return;
  }
}

// out = d * act'(u); out may be d itself.
void apply_backward(model::Activation activation, at::Tensor& out, const at::Tensor& d,
                    const at::Tensor& u) {
  switch (activation) {
    case model::Activation::kGelu: at::gelu_backward_out(out, d, u, "none"); return;
    case model::Activation::kGeluTanh: at::gelu_backward_out(out, d, u, "tanh"); return;
    case model::Activation::kSilu: at::silu_backward_out(out, d, u); return;
    case model::Activation::kRelu: at::threshold_backward_out(out, d, u, 0); return;
  }
}

}  // namespace

void activation(const SegmentShape& s, Phase phase, Operands& o, SegmentContext&) {
  const std::size_t first = phase == Phase::kF ? 0 : 1;  // of gate and up, or u
  const bool apart = o.reads.size() == first + 2;
  const auto half = [&](const at::Tensor& both, int i) {
    return both.narrow(-1, i * s.out, s.out);
  };
  at::Tensor gate = o.reads[first], up;
  if (s.gated) {
    up = apart ? o.reads[first + 1] : half(o.reads[first], 1);
    if (!apart) gate = half(o.reads[first], 0);
  }
  if (phase == Phase::kF) {
    at::Tensor& g = o.writes[0].make();
    apply(s.activation, g, gate);
    if (s.gated) g.mul_(up);
    return;
  }
  const at::Tensor& d = o.reads[0];
  at::Tensor& du = o.writes[0].make();
  if (!s.gated) return apply_backward(s.activation, du, d, gate);
  at::Tensor d_gate = apart ? du : half(du, 0), d_up = apart ? o.writes[1].make() : half(du, 1);
  at::mul_out(d_gate, d, up);
  apply_backward(s.activation, d_gate, d_gate, gate);
  apply(s.activation, d_up, gate);
  d_up.mul_(d);
}

}  // namespace orrery::executor::kernels
