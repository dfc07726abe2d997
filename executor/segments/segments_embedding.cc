#include <ATen/ops/add.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/sum.h>

#include <cstring>

#include "executor/segments/segment_kernels.h"

namespace orrery::executor::kernels {
namespace {

template <class T>
void gather_rows(const SegmentShape& s, const at::Tensor& ids, const at::Tensor& table,
                 at::Tensor& x, std::int64_t first) {
  const std::int64_t* id = ids.const_data_ptr<std::int64_t>();
  const T* from = table.const_data_ptr<T>();
  T* to = x.mutable_data_ptr<T>();
  for (std::int64_t t = 0; t < s.token_count(); ++t, to += s.in) {
    const std::int64_t row = id[t] - first;
    if (row < 0 || row >= s.out)
      std::memset(static_cast<void*>(to), 0, static_cast<std::size_t>(s.in) * sizeof(T));
    else
      std::memcpy(static_cast<void*>(to), from + row * s.in,
                  static_cast<std::size_t>(s.in) * sizeof(T));
  }
}

// In order of token: the sum of a row does not depend on threads.
template <class T>
void scatter_rows(const SegmentShape& s, const at::Tensor& ids, const at::Tensor& d,
                  at::Tensor& gradient, std::int64_t first) {
  const std::int64_t* id = ids.const_data_ptr<std::int64_t>();
  const T* from = d.const_data_ptr<T>();
  float* to = gradient.mutable_data_ptr<float>();
  for (std::int64_t t = 0; t < s.token_count(); ++t, from += s.in) {
    const std::int64_t row = id[t] - first;
    if (row < 0 || row >= s.out) continue;
    float* sum = to + row * s.in;
    for (std::int64_t i = 0; i < s.in; ++i) sum[i] += static_cast<float>(from[i]);
  }
}

void embedding_accelerator(const SegmentShape& s, Phase phase, Operands& o, std::int64_t first) {
  const at::Tensor& ids = phase == Phase::kF ? o.reads[0] : o.reads[1];
  at::Tensor local = ids.view({-1}).sub(first);
  const at::Tensor outside = local.lt(0).logical_or_(local.ge(s.out));
  local.masked_fill_(outside, 0);
  if (phase == Phase::kF) {
    at::Tensor x = o.writes[0].make().view({-1, s.in});
    at::index_select_out(x, o.weights[0], 0, local);
    x.masked_fill_(outside.unsqueeze(-1), 0);
    return;
  }
  const at::Tensor d = rows_of(o.reads[0]).masked_fill(outside.unsqueeze(-1), 0).to(at::kFloat);
  o.gradients[0].add_(at::embedding_dense_backward(d, local, s.out, -1, false));
}

}  // namespace

void embedding(const SegmentShape& s, Phase phase, Operands& o, const SegmentContext& context) {
  const std::int64_t first = context.vocabulary_shard * s.out;
  if (!o.reads[0].is_cpu()) return embedding_accelerator(s, phase, o, first);
  const bool bf16 = s.dtype == model::DType::kBFloat16;
  if (phase == Phase::kF) {
    at::Tensor& x = o.writes[0].make();
    if (bf16)
      gather_rows<at::BFloat16>(s, o.reads[0], o.weights[0], x, first);
    else
      gather_rows<float>(s, o.reads[0], o.weights[0], x, first);
    return;
  }
  if (bf16)
    scatter_rows<at::BFloat16>(s, o.reads[1], o.reads[0], o.gradients[0], first);
  else
    scatter_rows<float>(s, o.reads[1], o.reads[0], o.gradients[0], first);
}

void position_add(const SegmentShape& s, Phase phase, Operands& o, const SegmentContext& context) {
  const std::int64_t first = context.token_part(s) * s.tokens;
  if (phase == Phase::kF) {
    at::Tensor& y = o.writes[0].make();
    at::add_out(y, o.reads[0], o.weights[0].narrow(0, first, s.tokens));
    if (o.weights.size() > 1) y.add_(o.weights[1].select(0, 0));
    return;
  }
  const at::Tensor rows = at::sum(o.reads[0], {0});
  o.gradients[0].narrow(0, first, s.tokens).add_(rows);
  if (o.gradients.size() > 1) o.gradients[1].select(0, 0).add_(rows.sum(0));
}

}  // namespace orrery::executor::kernels
