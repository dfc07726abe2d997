/// Mixtures of experts on the CPU. T tokens choose k of E experts each; l logits, p scores, g
/// gates, c their scale, d gradients of outputs:
///
///   router     l = a W^T (+ b),  p = softmax(l), or sigma(l);  choice: the k largest p, of equals
///              the first, of the groups that count (model/spec.h, Routing)
///              g_j = c p_j / (sum of p over the choices), or c p_j;  of a shared expert
///              g_k = sigma(a . w),  dl = g_k (1 - g_k) dg_k
///              with t = sum_i g_i dg_i over the choices, dl of a choice j | of another expert:
///                normalised, softmax  g_j (dg_j - t / c)             | 0
///                normalised, sigma    g_j (dg_j - t / c) (1 - p_j)   | 0
///                otherwise, softmax   g_j dg_j - p_j t               | -p_j t
///                otherwise, sigma     g_j dg_j (1 - p_j)             | 0
///   dispatch   rows[slot_j] = a, other rows 0;  da = sum_j drows[slot_j]
///              of inputs: rows[slot_j] = g_j a;  da = sum_j g_j drows[slot_j], dg_j = a .
///              drows[slot_j]
///   experts    linears, each over its rows; where tensor ranks sum the outputs, each rank adds the
///              bias of features of its own
///   combine    p = sum_j g_j rows[slot_j] (+ g_k z)
///              drows[slot_j] = g_j d,  dg_j = d . rows[slot_j]  (, dz = g_k d, dg_k = d . z)
///              of inputs: with all g_j = 1, and no dg
///
/// Rows lie as [E, b, capacity], in order of token; behind an exchange as [source, experts of this
/// rank, b, capacity]. A choice beyond its expert's capacity has slot -1: its row and its gate's
/// gradient are 0. Sums are fp32 and in order of token or choice, so threads change nothing.
#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "executor/segments/segment_kernels.h"

namespace orrery::executor::kernels {
namespace {

/// body(T()) with the compute type.
template <class Body>
void of_type(const SegmentShape& s, Body body) {
  if (s.dtype == model::DType::kBFloat16) return body(at::BFloat16());
  body(0.0F);
}

/// visit(t) for every token.
template <class Visit>
void each_token(const SegmentShape& s, Visit visit) {
  at::parallel_for(0, s.token_count(), 16, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) visit(t);
  });
}

template <class T>
float dot(const T* a, const T* b, std::int64_t n) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<float>(a[i]) * static_cast<float>(b[i]);
  return sum;
}

template <class T>
void add_scaled(float* sum, float factor, const T* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] += factor * static_cast<float>(x[i]);
}

template <class T>
void scaled(T* to, float factor, const T* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(factor * static_cast<float>(x[i]));
}

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

template <class T>
void scores_of(const SegmentShape& s, const T* logits, float* p) {
  const std::int64_t n = s.experts;
  if (s.routing.sigmoid) {
    std::transform(logits, logits + n, p, [](T l) { return sigmoid(static_cast<float>(l)); });
    return;
  }
  const auto largest = static_cast<float>(*std::max_element(logits, logits + n));
  std::transform(logits, logits + n, p,
                 [&](T l) { return std::exp(static_cast<float>(l) - largest); });
  const float sum = std::accumulate(p, p + n, 0.0F);
  for (std::int64_t e = 0; e < n; ++e) p[e] /= sum;
}

/// The numbers from 0 to n - 1 of the k largest value(i), of equals the first, where allowed(i).
template <class Value, class Allowed>
void choose(std::int64_t n, Value value, Allowed allowed, std::int64_t* choice, std::int64_t k) {
  for (std::int64_t j = 0; j < k; ++j) {
    std::int64_t best = -1;
    for (std::int64_t i = 0; i < n; ++i)
      if (allowed(i) && (best < 0 || value(i) > value(best)) &&
          std::find(choice, choice + j, i) == choice + j)
        best = i;
    choice[j] = best;
  }
}

/// What a group of experts is chosen by.
float group_score(const SegmentShape& s, const float* p, std::int64_t size) {
  const std::int64_t first = std::max_element(p, p + size) - p;
  if (!s.routing.sigmoid || size == 1) return p[first];
  float second = 0;
  for (std::int64_t e = 0; e < size; ++e)
    if (e != first) second = std::max(second, p[e]);
  return p[first] + second;
}

void choose_experts(const SegmentShape& s, const float* p, std::int64_t* choice) {
  const auto score = [&](std::int64_t e) { return p[e]; };
  const auto any = [](std::int64_t) { return true; };
  const std::int64_t groups = s.routing.groups, size = s.experts / groups;
  if (groups == 1) return choose(s.experts, score, any, choice, s.top_k);
  std::vector<std::int64_t> best(as_index(s.routing.groups_per_token));
  choose(
      groups, [&](std::int64_t g) { return group_score(s, p + g * size, size); }, any, best.data(),
      s.routing.groups_per_token);
  const auto counts = [&](std::int64_t e) {
    return std::ranges::find(best, e / size) != best.end();
  };
  choose(s.experts, score, counts, choice, s.top_k);
}

template <class T>
void route(const SegmentShape& s, const at::Tensor& logits, Operands& o) {
  const T *l = logits.const_data_ptr<T>(), *a = o.reads[0].const_data_ptr<T>(),
          *w = s.shared ? o.weights.back().const_data_ptr<T>() : nullptr;
  float *gates = o.writes[0].make().mutable_data_ptr<float>(),
        *scores = o.writes[2].make().mutable_data_ptr<float>();
  std::int64_t* choices = o.writes[1].make().mutable_data_ptr<std::int64_t>();
  const auto scale = static_cast<float>(s.routing.scale);
  each_token(s, [&](std::int64_t t) {
    float *p = scores + t * s.experts, *g = gates + t * s.gates();
    std::int64_t* choice = choices + t * s.top_k;
    scores_of(s, l + t * s.experts, p);
    choose_experts(s, p, choice);
    float chosen = 0;
    for (std::int64_t j = 0; j < s.top_k; ++j) chosen += p[choice[j]];
    // Sigmoids may all be 0. The published routers add as much, which no other sum feels.
    chosen = s.routing.normalised ? chosen + 1e-20F : 1;
    for (std::int64_t j = 0; j < s.top_k; ++j) g[j] = scale * (p[choice[j]] / chosen);
    if (s.shared) g[s.top_k] = sigmoid(dot(a + t * s.in, w, s.in));
  });
}

/// dl [T,E] and, of the shared gate, dl [T,1], from dg, g, choice and scores.
void route_backward(const SegmentShape& s, const Operands& o, at::Tensor& dl, at::Tensor& shared) {
  const float *dgates = o.reads[0].const_data_ptr<float>(),
              *gates = o.reads[2].const_data_ptr<float>(),
              *scores = o.reads[4].const_data_ptr<float>();
  const std::int64_t* choices = o.reads[3].const_data_ptr<std::int64_t>();
  float* to = dl.mutable_data_ptr<float>();
  float* to_shared = s.shared ? shared.mutable_data_ptr<float>() : nullptr;
  const auto scale = static_cast<float>(s.routing.scale);
  each_token(s, [&](std::int64_t t) {
    const float *dg = dgates + t * s.gates(), *g = gates + t * s.gates(),
                *p = scores + t * s.experts;
    float* dl_t = to + t * s.experts;
    const float total = dot(g, dg, s.top_k), mean = s.routing.normalised ? total / scale : 0;
    if (!s.routing.normalised && !s.routing.sigmoid)
      for (std::int64_t e = 0; e < s.experts; ++e) dl_t[e] = -p[e] * total;
    for (std::int64_t j = 0; j < s.top_k; ++j) {
      const std::int64_t e = choices[t * s.top_k + j];
      dl_t[e] += g[j] * (dg[j] - mean) * (s.routing.sigmoid ? 1 - p[e] : 1);
    }
    const float sigma = g[s.gates() - 1];
    if (s.shared) to_shared[t] = sigma * (1 - sigma) * dg[s.top_k];
  });
}

/// In order of token within a sequence.
void assign_slots(const SegmentShape& s, const std::int64_t* choice, std::int64_t* slots) {
  std::vector<std::int64_t> taken(as_index(s.experts));
  for (std::int64_t b = 0; b < s.sequences; ++b) {
    std::ranges::fill(taken, 0);
    for (std::int64_t i = 0; i < s.tokens * s.top_k; ++i, ++choice, ++slots) {
      const std::int64_t at = taken[as_index(*choice)]++;
      *slots = at < s.capacity ? (*choice * s.sequences + b) * s.capacity + at : -1;
    }
  }
}

/// rows[slot_j] = x, or g_j x, of every token; other rows 0.
template <class T>
void scatter(const SegmentShape& s, const at::Tensor& tokens, const at::Tensor& slots_of,
             const float* gates, Output& to) {
  const T* x = tokens.const_data_ptr<T>();
  const std::int64_t* slots = slots_of.const_data_ptr<std::int64_t>();
  T* rows = to.make().zero_().mutable_data_ptr<T>();
  each_token(s, [&](std::int64_t t) {
    for (std::int64_t j = 0; j < s.top_k; ++j) {
      const std::int64_t slot = slots[t * s.top_k + j];
      if (slot >= 0 && gates != nullptr)
        scaled(rows + slot * s.in, gates[t * s.gates() + j], x + t * s.in, s.in);
      else if (slot >= 0)
        std::copy_n(x + t * s.in, s.in, rows + slot * s.in);
    }
  });
}

template <class T>
void send_rows(const SegmentShape& s, Operands& o) {
  at::Tensor& slots = o.writes[1].make();
  assign_slots(s, o.reads[1].const_data_ptr<std::int64_t>(),
               slots.mutable_data_ptr<std::int64_t>());
  const float* gates = s.routing.of_inputs ? o.reads[2].const_data_ptr<float>() : nullptr;
  scatter<T>(s, o.reads[0], slots, gates, o.writes[0]);
}

/// dg of gates of what experts read.
template <class T>
void dispatched_gates(const SegmentShape& s, Operands& o) {
  const T *drows = o.reads[0].const_data_ptr<T>(), *a = o.reads[3].const_data_ptr<T>();
  const std::int64_t* slots = o.reads[1].const_data_ptr<std::int64_t>();
  float* dgates = o.writes[1].make().mutable_data_ptr<float>();
  each_token(s, [&](std::int64_t t) {
    for (std::int64_t j = 0; j < s.top_k; ++j) {
      const std::int64_t slot = slots[t * s.top_k + j];
      dgates[t * s.gates() + j] = slot < 0 ? 0 : dot(a + t * s.in, drows + slot * s.in, s.in);
    }
  });
}

/// An output in fp32 where the compute type is narrower.
at::Tensor zero_sums(const SegmentShape& s, Output& out) {
  at::Tensor& made = out.make();
  if (s.dtype == model::DType::kFloat32) return made.zero_();
  return at::zeros(out.shape, at::TensorOptions().dtype(at::kFloat));
}
void round_to(Output& out, const at::Tensor& sums) {
  if (!out.tensor.is_same(sums)) out.tensor.copy_(sums);
}

/// sums[t] += sum_j g_j rows[slot_j]; without gates all are 1.
template <class T>
void add_rows(const SegmentShape& s, const at::Tensor& from, const at::Tensor& slots_of,
              const float* gates, at::Tensor& sums) {
  const T* rows = from.const_data_ptr<T>();
  const std::int64_t* slots = slots_of.const_data_ptr<std::int64_t>();
  float* to = sums.mutable_data_ptr<float>();
  each_token(s, [&](std::int64_t t) {
    for (std::int64_t j = 0; j < s.top_k; ++j) {
      const std::int64_t slot = slots[t * s.top_k + j];
      const float gate = gates == nullptr ? 1 : gates[t * s.gates() + j];
      if (slot >= 0) add_scaled(to + t * s.in, gate, rows + slot * s.in, s.in);
    }
  });
}

template <class T>
void combine_backward(const SegmentShape& s, Operands& o) {
  if (s.routing.of_inputs) return scatter<T>(s, o.reads[0], o.reads[1], nullptr, o.writes[0]);
  const T *d = o.reads[0].const_data_ptr<T>(), *rows = o.reads[1].const_data_ptr<T>(),
          *z = s.shared ? o.reads[4].const_data_ptr<T>() : nullptr;
  const float* gates = o.reads[2].const_data_ptr<float>();
  const std::int64_t* slots = o.reads[3].const_data_ptr<std::int64_t>();
  T* drows = o.writes[0].make().zero_().mutable_data_ptr<T>();
  float* dgates = o.writes[1].make().mutable_data_ptr<float>();
  T* dz = s.shared ? o.writes[2].make().mutable_data_ptr<T>() : nullptr;
  each_token(s, [&](std::int64_t t) {
    const T* dt = d + t * s.in;
    const float* g = gates + t * s.gates();
    float* dg = dgates + t * s.gates();
    for (std::int64_t j = 0; j < s.top_k; ++j) {
      const std::int64_t slot = slots[t * s.top_k + j];
      dg[j] = slot < 0 ? 0 : dot(dt, rows + slot * s.in, s.in);
      if (slot >= 0) scaled(drows + slot * s.in, g[j], dt, s.in);
    }
    if (!s.shared) return;
    dg[s.top_k] = dot(dt, z + t * s.in, s.in);
    scaled(dz + t * s.in, g[s.top_k], dt, s.in);
  });
}

}  // namespace

void router(const SegmentShape& s, Phase phase, Operands& o, SegmentContext&) {
  const auto weight = [&] { return o.weights[0].view({s.experts, s.in}); };
  const auto shared_weight = [&] { return o.weights.back().view({1, s.in}); };
  if (phase == Phase::kF) {
    at::Tensor logits = empty({s.token_count(), s.experts}, s.dtype, at::kCPU);
    const at::Tensor a = rows_of(o.reads[0]);
    if (s.bias)
      at::addmm_out(logits, o.weights[1], a, weight().t());
    else
      at::mm_out(logits, a, weight().t());
    return of_type(s, [&]<class T>(T) { route<T>(s, logits, o); });
  }
  const auto fp32 = at::TensorOptions().dtype(at::kFloat);
  at::Tensor dl = at::zeros({s.token_count(), s.experts}, fp32), shared;
  if (s.shared) shared = at::zeros({s.token_count(), 1}, fp32);
  route_backward(s, o, dl, shared);
  const at::Tensor a = rows_of(o.reads[1]), rounded = dl.to(a.scalar_type());
  if (s.shared) shared = shared.to(a.scalar_type());
  if (has_weight_gradient(phase)) {
    add_product_gradient(s, o.gradients[0].view({s.experts, s.in}), rounded, a, 1);
    if (s.bias) o.gradients[1].add_(at::sum(dl, {0}));
    if (s.shared) add_product_gradient(s, o.gradients.back().view({1, s.in}), shared, a, 1);
  }
  if (!has_input_gradient(phase)) return;
  at::Tensor da = rows_of(o.writes[0].make());
  at::mm_out(da, rounded, weight());
  if (s.shared) at::addmm_out(da, da, shared, shared_weight());
}

void dispatch(const SegmentShape& s, Phase phase, Operands& o, SegmentContext&) {
  if (phase == Phase::kF) return of_type(s, [&]<class T>(T) { send_rows<T>(s, o); });
  at::Tensor sums = zero_sums(s, o.writes[0]);
  const float* gates = s.routing.of_inputs ? o.reads[2].const_data_ptr<float>() : nullptr;
  of_type(s, [&]<class T>(T) {
    add_rows<T>(s, o.reads[0], o.reads[1], gates, sums);
    if (s.routing.of_inputs) dispatched_gates<T>(s, o);
  });
  round_to(o.writes[0], sums);
}

void combine(const SegmentShape& s, Phase phase, Operands& o, SegmentContext&) {
  if (phase != Phase::kF) return of_type(s, [&]<class T>(T) { combine_backward<T>(s, o); });
  const float* gates = s.routing.of_inputs ? nullptr : o.reads[1].const_data_ptr<float>();
  at::Tensor sums = zero_sums(s, o.writes[0]);
  of_type(s, [&]<class T>(T) {
    add_rows<T>(s, o.reads[0], o.reads[s.routing.of_inputs ? 1 : 2], gates, sums);
    if (!s.shared) return;
    const T* z = o.reads[3].const_data_ptr<T>();
    float* to = sums.mutable_data_ptr<float>();
    each_token(s, [&](std::int64_t t) {
      add_scaled(to + t * s.in, gates[t * s.gates() + s.top_k], z + t * s.in, s.in);
    });
  });
  round_to(o.writes[0], sums);
}

/// Weights [parts, experts, width, in]: a gated input's are the gates of all experts, then theirs.
void expert_product(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  const std::int64_t parts = s.kind == model::SegmentKind::kExpertIn && s.gated ? 2 : 1,
                     width = s.out / parts, rows = s.sequences * s.capacity,
                     sources = s.tokens / (s.experts * s.capacity);
  ORRERY_CHECK(s.tokens == sources * s.experts * s.capacity);
  const auto matrix = [&](const at::Tensor& of, std::int64_t part, std::int64_t e) {
    return of.view({parts * s.experts, width, s.in}).select(0, part * s.experts + e);
  };
  // visit(expert, part of the outputs, [first, first + rows) of the rows)
  const auto each_block = [&](auto visit) {
    for (std::int64_t e = 0; e < s.experts; ++e)
      for (std::int64_t part = 0; part < parts; ++part)
        for (std::int64_t i = 0; i < sources; ++i) visit(e, part, (i * s.experts + e) * rows);
  };
  const auto outputs = [&](const at::Tensor& y, std::int64_t part, std::int64_t first) {
    return y.narrow(0, first, rows).narrow(1, part * width, width);
  };
  const std::int64_t biased = width / s.parts,
                     first_biased = (context.local_rank / s.part_stride) % s.parts * biased;
  const auto bias = [&](const at::Tensor& of, std::int64_t part, std::int64_t e) {
    return of.view({parts * s.experts, biased}).select(0, part * s.experts + e);
  };
  if (phase == Phase::kF) {
    const at::Tensor x = rows_of(o.reads[0]), y = rows_of(o.writes[0].make());
    return each_block([&](std::int64_t e, std::int64_t part, std::int64_t first) {
      at::Tensor to = outputs(y, part, first);
      at::mm_out(to, x.narrow(0, first, rows), matrix(o.weights[0], part, e).t());
      if (s.bias) to.narrow(1, first_biased, biased).add_(bias(o.weights[1], part, e));
    });
  }
  const at::Tensor dy = rows_of(o.reads[0]);
  if (has_weight_gradient(phase)) {
    const at::Tensor x = rows_of(o.reads[1]);
    each_block([&](std::int64_t e, std::int64_t part, std::int64_t first) {
      const at::Tensor d = outputs(dy, part, first);
      add_product_gradient(s, matrix(o.gradients[0], part, e), d, x.narrow(0, first, rows), 1);
      if (s.bias)
        bias(o.gradients[1], part, e).add_(at::sum(d.narrow(1, first_biased, biased), {0}));
    });
  }
  if (!has_input_gradient(phase)) return;
  const at::Tensor dx = rows_of(o.writes[0].make());
  each_block([&](std::int64_t e, std::int64_t part, std::int64_t first) {
    at::Tensor to = dx.narrow(0, first, rows);
    const at::Tensor d = outputs(dy, part, first), w = matrix(o.weights[0], part, e);
    if (part == 0)
      at::mm_out(to, d, w);
    else
      at::addmm_out(to, to, d, w);
  });
}

}  // namespace orrery::executor::kernels
