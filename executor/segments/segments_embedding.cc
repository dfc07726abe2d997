#include <ATen/ops/add.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "executor/segments/segment_kernels.h"

namespace orrery::executor::kernels {
namespace {

template <class T>
void gather_rows(const SegmentShape& s, Operands& o, std::int64_t first) {
  const std::int64_t* id = o.reads[0].const_data_ptr<std::int64_t>();
  const T* from = o.weights[0].const_data_ptr<T>();
  T* to = o.writes[0].make().mutable_data_ptr<T>();
  for (std::int64_t t = 0; t < s.token_count(); ++t, to += s.in) {
    const std::int64_t row = id[t] - first;
    if (row < 0 || row >= s.out)
      std::fill_n(to, s.in, T(0));
    else
      std::copy_n(from + row * s.in, s.in, to);
  }
}

// In order of token: the sum of a row does not depend on threads.
template <class T>
void scatter_rows(const SegmentShape& s, Operands& o, std::int64_t first) {
  const std::int64_t* id = o.reads[1].const_data_ptr<std::int64_t>();
  const T* from = o.reads[0].const_data_ptr<T>();
  float* to = o.gradients[0].mutable_data_ptr<float>();
  for (std::int64_t t = 0; t < s.token_count(); ++t, from += s.in) {
    const std::int64_t row = id[t] - first;
    if (row < 0 || row >= s.out) continue;
    float* sum = to + row * s.in;
    for (std::int64_t i = 0; i < s.in; ++i) sum[i] += static_cast<float>(from[i]);
  }
}

void look_up_on_device(const SegmentShape& s, Phase phase, Operands& o, std::int64_t first) {
  const bool forward = phase == Phase::kF;
  const at::Tensor& ids = o.reads[forward ? 0 : 1];
  const device::Lookup lookup{ids.const_data_ptr<std::int64_t>(), s.token_count(), first, s.out,
                              s.in};
  launched(forward ? device::look_up(queue_of(ids), lookup, numbers_of(o.weights[0]),
                                     numbers_of(o.writes[0].make()))
                   : device::add_looked_up(queue_of(ids), lookup, numbers_of(o.reads[0]),
                                           o.gradients[0].mutable_data_ptr<float>()));
}

void look_up(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  const std::int64_t first = context.vocabulary_shard * s.out;
  if (!o.reads[0].is_cpu()) return look_up_on_device(s, phase, o, first);
  const auto on_cpu = [&]<class T>(T) {
    phase == Phase::kF ? gather_rows<T>(s, o, first) : scatter_rows<T>(s, o, first);
  };
  if (s.dtype == model::DType::kBFloat16) return on_cpu(at::BFloat16());
  on_cpu(0.0F);
}

}  // namespace

/// Times `scale` (Gemma's sqrt(h), Granite's multiplier).
void embedding(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  if (phase == Phase::kB) return;  // of a frozen table
  if (s.scale != 1 && phase != Phase::kF) o.reads[0] = o.reads[0].mul(s.scale);
  look_up(s, phase, o, context);
  if (s.scale != 1 && phase == Phase::kF) o.writes[0].tensor.mul_(s.scale);
}

void position_add(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  const std::int64_t first = context.token_part(s) * s.tokens, chunk = s.chunk_tokens(),
                     run = std::gcd(chunk, s.tokens);
  // [at, at + run) of this rank's tokens and the rows of the table that are theirs
  const auto each_run = [&](auto visit) {
    for (std::int64_t at = 0; at < s.tokens; at += run)
      visit(at, model::position_of(first + at, s.token_chunks, chunk));
  };
  // tables of positions, and what stands behind them: a row that is added without regard to place
  const bool of_class = s.kv_tokens > 0;
  const auto& tables = phase == Phase::kF ? o.weights : o.gradients;
  const bool learned = tables.size() > 1 || !of_class;
  const auto row = [&] { return tables.back().select(0, 0); };
  if (phase == Phase::kF) {
    at::Tensor& y = o.writes[0].make();
    if (learned)
      each_run([&](std::int64_t at, std::int64_t position) {
        at::Tensor to = y.narrow(1, at, run);
        at::add_out(to, o.reads[0].narrow(1, at, run), tables[0].narrow(0, position, run));
      });
    else
      y.copy_(o.reads[0]);
    if (of_class)
      y.narrow(1, 0, s.kv_tokens).add_(row());
    else if (tables.size() > 1)
      y.add_(row());
    return;
  }
  const at::Tensor sums = at::sum(o.reads[0], {0});
  if (learned)
    each_run([&](std::int64_t at, std::int64_t position) {
      tables[0].narrow(0, position, run).add_(sums.narrow(0, at, run));
    });
  if (of_class)
    row().add_(sums.narrow(0, 0, s.kv_tokens).sum(0));
  else if (tables.size() > 1)
    row().add_(sums.sum(0));
}

/// The mean of the first tokens of a sequence.
void pool(const SegmentShape& s, Phase phase, Operands& o, SegmentContext&) {
  const auto pooled = [&s](const at::Tensor& x) { return x.narrow(1, 0, s.kv_tokens); };
  if (phase == Phase::kF) {
    at::Tensor y = o.writes[0].make().view({s.sequences, s.out});
    at::mean_out(y, pooled(o.reads[0]), {1});
    return;
  }
  at::Tensor& dx = o.writes[0].make().zero_();
  pooled(dx).copy_(o.reads[0].view({s.sequences, 1, s.out})).div_(real(s.kv_tokens));
}

}  // namespace orrery::executor::kernels
