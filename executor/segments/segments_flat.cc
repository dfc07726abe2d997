/// Segments over flat storage, and the local slice.
///
/// AdamW (Loshchilov & Hutter, 2019; decoupled decay, as torch.optim.AdamW), for update number t:
///
///   p -= lr wd p;   m += (1 - b1)(g - m);   v += (1 - b2)(g^2 - v)
///   p -= lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)
///
/// One loop without temporaries and without contraction, so an element's result never depends on
/// where its shard begins. In bf16 training p is the fp32 master, and the bf16 parameter is its
/// rounding.
#include <ATen/Parallel.h>
#include <ATen/ops/sqrt.h>

#include <algorithm>
#include <cmath>

#include "base/numbers.h"
#include "executor/segments/segment_kernels.h"

namespace orrery::executor::kernels {
namespace {

struct Coefficients {
  float decay, beta1, beta2, step, root_correction, epsilon;
};

Coefficients coefficients(const AdamW& a, std::int64_t update, bool decays) {
  const double t = real(update);
  return {.decay = static_cast<float>(decays ? 1.0 - a.learning_rate * a.weight_decay : 1.0),
          .beta1 = static_cast<float>(1.0 - a.beta1),
          .beta2 = static_cast<float>(1.0 - a.beta2),
          .step = static_cast<float>(a.learning_rate / (1.0 - std::pow(a.beta1, t))),
          .root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(a.beta2, t))),
          .epsilon = static_cast<float>(a.epsilon)};
}

void update_range(float* __restrict p, const float* __restrict g, float* __restrict m,
                  float* __restrict v, std::int64_t n, const Coefficients& c) {
  for (std::int64_t i = 0; i < n; ++i) {
    m[i] += c.beta1 * (g[i] - m[i]);
    v[i] += c.beta2 * (g[i] * g[i] - v[i]);
    p[i] = c.decay * p[i] - c.step * (m[i] / (std::sqrt(v[i]) * c.root_correction + c.epsilon));
  }
}

// Piece by piece, which bounds the temporary.
void update_accelerator(const at::Tensor& p, const at::Tensor& g, const at::Tensor& m,
                        const at::Tensor& v, const Coefficients& c) {
  constexpr std::int64_t kPiece = 1 << 22;
  for (std::int64_t first = 0; first < p.numel(); first += kPiece) {
    const auto cut = [&](const at::Tensor& t) {
      return t.narrow(0, first, std::min(kPiece, p.numel() - first));
    };
    const at::Tensor g_piece = cut(g), m_piece = cut(m), v_piece = cut(v);
    m_piece.lerp_(g_piece, c.beta1);
    v_piece.mul_(1.0 - c.beta2).addcmul_(g_piece, g_piece, c.beta2);
    cut(p).mul_(c.decay).addcdiv_(
        m_piece, at::sqrt(v_piece).mul_(c.root_correction).add_(c.epsilon), -c.step);
  }
}

// The owned part of a tensor that is either the shard itself or the whole flat storage.
at::Tensor owned(const at::Tensor& flat, std::int64_t begin, std::int64_t elements) {
  return flat.numel() == elements ? flat.view({-1}) : flat.view({-1}).narrow(0, begin, elements);
}

}  // namespace

void slice(const SegmentShape& s, Phase, Operands& o, SegmentContext& context) {
  const std::int64_t part = (context.local_rank / s.part_stride) % s.parts;
  const std::int64_t length = o.reads[0].size(s.dim) / s.parts;
  o.writes[0].make().copy_(o.reads[0].narrow(s.dim, part * length, length));
}

void zero_gradient(const SegmentShape&, Phase, Operands& o, SegmentContext&) {
  for (Output& w : o.writes) w.make().zero_();
  for (at::Tensor& u : o.updates) u.zero_();
}

void accumulate(const SegmentShape&, Phase, Operands& o, SegmentContext&) {
  o.updates[0].add_(o.reads[0].view(o.updates[0].sizes()));
}

void adamw(const SegmentShape& s, Phase, Operands& o, SegmentContext& context) {
  const at::Tensor g = owned(o.reads[0], context.shard_begin, s.elements);
  at::Tensor parameter = owned(o.updates[0], context.shard_begin, s.elements);
  const bool has_master = o.updates.size() > 3;
  const at::Tensor p = has_master ? o.updates[3] : parameter;
  const at::Tensor &m = o.updates[1], &v = o.updates[2];
  const std::int64_t end = context.shard_begin + s.elements;
  const auto range = [&](std::int64_t from, std::int64_t to, bool decays) {
    from = std::max(from, context.shard_begin);
    to = std::min(to, end);
    if (from >= to) return;
    const Coefficients c = coefficients(context.optimizer, context.update, decays);
    const std::int64_t at_shard = from - context.shard_begin, n = to - from;
    if (!p.is_cpu()) {
      const auto cut = [&](const at::Tensor& t) { return t.narrow(0, at_shard, n); };
      return update_accelerator(cut(p), cut(g), cut(m), cut(v), c);
    }
    at::parallel_for(0, n, 1 << 15, [&](std::int64_t b, std::int64_t e) {
      const std::int64_t first = at_shard + b;
      update_range(p.mutable_data_ptr<float>() + first, g.const_data_ptr<float>() + first,
                   m.mutable_data_ptr<float>() + first, v.mutable_data_ptr<float>() + first, e - b,
                   c);
    });
  };
  for (const plan::Parameter& parameter_of : context.unit->parameters) {
    range(parameter_of.offset, parameter_of.offset + elements_of(parameter_of.local_shape),
          parameter_of.decay);
  }
  if (has_master) parameter.copy_(p);
}

}  // namespace orrery::executor::kernels
