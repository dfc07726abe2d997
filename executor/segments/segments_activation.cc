/// g = act(u), or g = act(gate) * up with u = [gate | up] along the features; backward writes into
/// the halves of du.
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
  if (phase == Phase::kF) {
    at::Tensor& g = o.writes[0].make();
    const at::Tensor& u = o.reads[0];
    if (!s.gated) return apply(s.activation, g, u);
    apply(s.activation, g, u.narrow(-1, 0, s.out));
    g.mul_(u.narrow(-1, s.out, s.out));
    return;
  }
  const at::Tensor &d = o.reads[0], &u = o.reads[1];
  at::Tensor& du = o.writes[0].make();
  if (!s.gated) return apply_backward(s.activation, du, d, u);
  const at::Tensor gate = u.narrow(-1, 0, s.out), up = u.narrow(-1, s.out, s.out);
  at::Tensor d_gate = du.narrow(-1, 0, s.out), d_up = du.narrow(-1, s.out, s.out);
  at::mul_out(d_gate, d, up);
  apply_backward(s.activation, d_gate, d_gate, gate);
  apply(s.activation, d_up, gate);
  d_up.mul_(d);
}

}  // namespace orrery::executor::kernels
