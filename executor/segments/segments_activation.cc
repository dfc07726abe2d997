/// g = act(u), or g = act(gate) * up, with gate and up the halves of u along the features, or each
/// an operand; backward writes into the same of du. A device has SiLU and GELU (tanh), gates
/// too, in one kernel of ours.
///
/// On the CPU in fp32 GELU (tanh) and SiLU are one loop each, x sigma(a(x)):
///
///   sigma = e^a / (1 + e^a),   y = x sigma,   y' = sigma + x sigma (1 - sigma) a'
///   SiLU: a = x;   GELU: a = 2 sqrt(2/pi) (x + 0.044715 x^3), since (1 + tanh z) / 2 = sigma(2z)
///
/// GPT-OSS's gate, on the CPU alone and in fp32: with x = min(gate, 7), v = up kept in -7 .. 7,
///
///   g = (v + 1) x sigma(1.702 x);   beyond a limit the gradient is 0
#include <ATen/Parallel.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold_backward.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "executor/segments/segment_kernels.h"
#include "executor/segments/vector_math.h"

namespace orrery::executor::kernels {
namespace {

void apply(model::Activation activation, at::Tensor& out, const at::Tensor& u) {
  switch (activation) {
    case model::Activation::kGelu: at::gelu_out(out, u, "none"); return;
    case model::Activation::kGeluTanh: at::gelu_out(out, u, "tanh"); return;
    case model::Activation::kSilu: at::silu_out(out, u); return;
    case model::Activation::kRelu: at::clamp_min_out(out, u, 0); return;
    case model::Activation::kSquaredRelu:
      at::clamp_min_out(out, u, 0);
      out.square_();
      return;
    case model::Activation::kSigmoid: at::sigmoid_out(out, u); return;
    case model::Activation::kClampedSwiglu: break;
  }
  ORRERY_CHECK(false, "no operation of LibTorch has it");
}

// out = d * act'(u); out may be d itself.
void apply_backward(model::Activation activation, at::Tensor& out, const at::Tensor& d,
                    const at::Tensor& u) {
  switch (activation) {
    case model::Activation::kGelu: at::gelu_backward_out(out, d, u, "none"); return;
    case model::Activation::kGeluTanh: at::gelu_backward_out(out, d, u, "tanh"); return;
    case model::Activation::kSilu: at::silu_backward_out(out, d, u); return;
    case model::Activation::kRelu: at::threshold_backward_out(out, d, u, 0); return;
    case model::Activation::kSquaredRelu: at::mul_out(out, d, u.clamp_min(0).mul_(2)); return;
    case model::Activation::kSigmoid: at::sigmoid_backward_out(out, d, u.sigmoid()); return;
    case model::Activation::kClampedSwiglu: break;
  }
  ORRERY_CHECK(false, "no operation of LibTorch has it");
}

/// What a pass over rows of `n` features reads and writes: up and d_up are null without a gate.
struct Rows {
  const float *gate, *up, *d;
  float *g, *d_gate, *d_up;  // forward: g alone
  std::int64_t n;
};

constexpr float kSlope = 1.5957691216057308F, kCubic = 0.044715F;  // 2 sqrt(2/pi)

ORRERY_EACH_WIDTH void gelu_row(const Rows& row) {
  const float* __restrict x = row.gate;
  float* __restrict g = row.g;
  for (std::int64_t i = 0; i < row.n; ++i) {
    const float e = exponential(kSlope * x[i] * (1.0F + kCubic * x[i] * x[i]));
    g[i] = x[i] * (e / (1.0F + e));
  }
}

ORRERY_EACH_WIDTH void gelu_backward_row(const Rows& row) {
  const float* __restrict x = row.gate;
  const float* __restrict d = row.d;
  float* __restrict dx = row.d_gate;
  for (std::int64_t i = 0; i < row.n; ++i) {
    const float square = kCubic * x[i] * x[i];
    const float e = exponential(kSlope * x[i] * (1.0F + square)), rest = 1.0F / (1.0F + e),
                sigma = e * rest;
    dx[i] = d[i] * (sigma + x[i] * sigma * rest * kSlope * (1.0F + 3.0F * square));
  }
}

ORRERY_EACH_WIDTH void silu_row(const Rows& row) {
  const float* __restrict x = row.gate;
  float* __restrict g = row.g;
  for (std::int64_t i = 0; i < row.n; ++i) {
    const float e = exponential(x[i]);
    g[i] = x[i] * (e / (1.0F + e));
  }
}

ORRERY_EACH_WIDTH void silu_backward_row(const Rows& row) {
  const float* __restrict x = row.gate;
  const float* __restrict d = row.d;
  float* __restrict dx = row.d_gate;
  for (std::int64_t i = 0; i < row.n; ++i) {
    const float e = exponential(x[i]), rest = 1.0F / (1.0F + e), sigma = e * rest;
    dx[i] = d[i] * (sigma + x[i] * sigma * rest);
  }
}

ORRERY_EACH_WIDTH void gated_silu_row(const Rows& row) {
  const float* __restrict x = row.gate;
  const float* __restrict up = row.up;
  float* __restrict g = row.g;
  for (std::int64_t i = 0; i < row.n; ++i) {
    const float e = exponential(x[i]);
    g[i] = x[i] * (e / (1.0F + e)) * up[i];
  }
}

ORRERY_EACH_WIDTH void gated_silu_backward_row(const Rows& row) {
  const float* __restrict x = row.gate;
  const float* __restrict up = row.up;
  const float* __restrict d = row.d;
  float* __restrict d_gate = row.d_gate;
  float* __restrict d_up = row.d_up;
  for (std::int64_t i = 0; i < row.n; ++i) {
    const float e = exponential(x[i]), rest = 1.0F / (1.0F + e), sigma = e * rest;
    d_gate[i] = d[i] * up[i] * (sigma + x[i] * sigma * rest);
    d_up[i] = d[i] * x[i] * sigma;
  }
}

constexpr float kClamp = 7, kClampedSlope = 1.702F;

ORRERY_EACH_WIDTH void clamped_row(const Rows& row) {
  const float* __restrict gate = row.gate;
  const float* __restrict up = row.up;
  float* __restrict g = row.g;
  for (std::int64_t i = 0; i < row.n; ++i) {
    const float x = std::min(gate[i], kClamp), v = std::clamp(up[i], -kClamp, kClamp);
    const float e = exponential(kClampedSlope * x);
    g[i] = (v + 1.0F) * x * (e / (1.0F + e));
  }
}

ORRERY_EACH_WIDTH void clamped_backward_row(const Rows& row) {
  const float* __restrict gate = row.gate;
  const float* __restrict up = row.up;
  const float* __restrict d = row.d;
  float* __restrict d_gate = row.d_gate;
  float* __restrict d_up = row.d_up;
  for (std::int64_t i = 0; i < row.n; ++i) {
    const float x = std::min(gate[i], kClamp), v = std::clamp(up[i], -kClamp, kClamp);
    const float e = exponential(kClampedSlope * x), rest = 1.0F / (1.0F + e), sigma = e * rest;
    d_gate[i] =
        gate[i] > kClamp ? 0.0F : d[i] * (v + 1.0F) * (sigma + kClampedSlope * x * sigma * rest);
    d_up[i] = std::abs(up[i]) > kClamp ? 0.0F : d[i] * x * sigma;
  }
}

/// The loop of this shape and phase; null: LibTorch's operations serve.
using RowLoop = void(const Rows&);
RowLoop* loop_of(const SegmentShape& s, Phase phase, const at::Tensor& u) {
  const bool forward = phase == Phase::kF;
  if (s.activation == model::Activation::kClampedSwiglu)
    return forward ? clamped_row : clamped_backward_row;
  if (!u.is_cpu() || u.scalar_type() != at::kFloat) return nullptr;
  if (s.activation == model::Activation::kSilu) {
    if (s.gated) return forward ? gated_silu_row : gated_silu_backward_row;
    return forward ? silu_row : silu_backward_row;
  }
  if (s.activation != model::Activation::kGeluTanh || s.gated) return nullptr;
  return forward ? gelu_row : gelu_backward_row;
}

/// Tensors of [.., n] whose rows lie at one stride each; gate and up, or what stands for both.
struct Parts {
  at::Tensor gate, up;
};

void run_rows(RowLoop* loop, const Parts& in, const at::Tensor& d, const at::Tensor& g,
              const Parts& out) {
  const std::int64_t n = in.gate.size(-1), rows = in.gate.numel() / n;
  const auto from = [](const at::Tensor& t, std::int64_t row) {
    return t.defined() ? t.const_data_ptr<float>() + row * t.stride(-2) : nullptr;
  };
  const auto to = [](const at::Tensor& t, std::int64_t row) {
    return t.defined() ? t.mutable_data_ptr<float>() + row * t.stride(-2) : nullptr;
  };
  constexpr std::int64_t kElementsOfTask = 1 << 14;
  at::parallel_for(0, rows, std::max<std::int64_t>(1, kElementsOfTask / n),
                   [&](std::int64_t first, std::int64_t last) {
                     for (std::int64_t r = first; r < last; ++r)
                       loop({from(in.gate, r), from(in.up, r), from(d, r), to(g, r),
                             to(out.gate, r), to(out.up, r), n});
                   });
}

/// Whether a device has this in one kernel of ours.
bool is_of_device(const SegmentShape& s, const at::Tensor& u) {
  return !u.is_cpu() &&
         (s.activation == model::Activation::kSilu || s.activation == model::Activation::kGeluTanh);
}

device::Numbers numbers_or_none(const at::Tensor& t) {
  return t.defined() ? numbers_of(t) : device::Numbers{};
}

device::Activated rows_of_device(const SegmentShape& s, const Parts& in) {
  ORRERY_CHECK(!in.up.defined() || in.gate.stride(-2) == in.up.stride(-2));
  return {.gate = numbers_of(in.gate),
          .up = numbers_or_none(in.up),
          .rows = s.token_count(),
          .columns = s.out,
          .stride = in.gate.stride(-2),
          .gelu = s.activation == model::Activation::kGeluTanh};
}

/// By way of fp32, what has a loop for that alone.
void widened(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  Operands wide = o;
  for (at::Tensor& read : wide.reads) read = read.to(at::kFloat);
  for (Output& write : wide.writes) write.dtype = model::DType::kFloat32;
  activation(s, phase, wide, context);
  for (std::size_t i = 0; i < o.writes.size(); ++i)
    o.writes[i].tensor = wide.writes[i].tensor.to(scalar_type(o.writes[i].dtype));
}

}  // namespace

void activation(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  if (s.activation == model::Activation::kClampedSwiglu && o.reads[0].scalar_type() != at::kFloat)
    return widened(s, phase, o, context);
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
  RowLoop* const loop = loop_of(s, phase, gate);
  if (phase == Phase::kF) {
    at::Tensor& g = o.writes[0].make();
    if (loop != nullptr) return run_rows(loop, {gate, up}, {}, g, {});
    if (is_of_device(s, gate))
      return launched(
          device::activation(queue_of(gate), rows_of_device(s, {gate, up}), numbers_of(g)));
    apply(s.activation, g, gate);
    if (s.gated) g.mul_(up);
    return;
  }
  const at::Tensor& d = o.reads[0];
  at::Tensor& du = o.writes[0].make();
  at::Tensor d_gate = du, d_up;
  if (s.gated) {
    d_up = apart ? o.writes[1].make() : half(du, 1);
    if (!apart) d_gate = half(du, 0);
  }
  if (loop != nullptr) return run_rows(loop, {gate, up}, d, {}, {d_gate, d_up});
  if (is_of_device(s, gate)) {
    ORRERY_CHECK(d_gate.stride(-2) == gate.stride(-2));
    const device::Activated rows = rows_of_device(s, {gate, up});
    Joining* const next = std::exchange(context.behind, nullptr);
    if (next == nullptr)
      return launched(device::activation_backward(queue_of(gate), rows, numbers_of(d),
                                                  numbers_of(d_gate), numbers_or_none(d_up)));
    const at::Tensor partial = partials(device::activation_partials(rows), du);
    return launched(device::activation_backward_with_sums(
        queue_of(gate), rows, numbers_of(d), numbers_of(d_gate), numbers_or_none(d_up),
        bias_gradient_of(*next, du.size(-1)), arrivals_of(context, partial)));
  }
  if (!s.gated) return apply_backward(s.activation, du, d, gate);
  at::mul_out(d_gate, d, up);
  apply_backward(s.activation, d_gate, d_gate, gate);
  apply(s.activation, d_up, gate);
  d_up.mul_(d);
}

}  // namespace orrery::executor::kernels
