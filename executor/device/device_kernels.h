#pragma once
/// Kernels of our own on CUDA, one launch each, where ATen takes many (device_*_cuda.cu).
/// ATen's operations and the loops for the CPU are their reference (tests/gpu). No name of CUDA or
/// of LibTorch stands here, so that nvcc compiles little and callers need no toolkit. Sums are fp32
/// in an order that depends on shapes alone. A function returns what the launch ended with: null,
/// or the toolkit's words.
#include <cstdint>

namespace orrery::executor::device {

/// The device's queue that a kernel joins: a cudaStream_t.
using Queue = void*;

/// Numbers of the compute type.
struct Numbers {
  void* data = nullptr;
  bool bf16 = false;
};

/// A shard's logits [rows, columns], rows at `stride`: of them `columns` belong to the vocabulary,
/// the others are padding. `first`: vocabulary row of column 0.
struct Logits {
  Numbers numbers;
  std::int64_t rows = 0, columns = 0, stride = 0, first = 0;
};
/// m[t] = max_c x.
const char* loss_max(Queue queue, const Logits& x, float* m);
/// stat[t] = sum_c exp(x - m), stat[rows + t] = x_target - m, 0 where another shard has the target.
const char* loss_sum(Queue queue, const Logits& x, const float* m, const std::int64_t* targets,
                     float* stat);
/// x = scale (exp(x - m) / stat[t] - [column = target]); padding: 0.
const char* loss_gradient(Queue queue, const Logits& x, const float* m, const float* stat,
                          const std::int64_t* targets, float scale);

/// Rows [rows, features] of a norm; mean is null for an RMS norm, and so is then the bias.
struct NormRows {
  Numbers x, gain, bias;
  float* mean = nullptr;
  float* rstd = nullptr;
  std::int64_t rows = 0, features = 0;
};
/// y, mean and rstd of x, as segments_norm.cc states them.
const char* norm(Queue queue, const NormRows& rows, const Numbers& y, double epsilon);
/// y, mean and rstd of the sum x' = x + p (+ bias), which goes to rows.x.
struct Addends {
  Numbers x, p, bias;
};
const char* norm_of_sum(Queue queue, const NormRows& rows, const Addends& sum, const Numbers& y,
                        double epsilon);

/// Where the blocks of a launch meet to add up: room for partial sums, and kMost counts of those
/// that have arrived, 0 before and after.
struct Arrivals {
  static constexpr std::int64_t kMost = 1 << 14;
  float* partial = nullptr;
  unsigned* arrived = nullptr;
};
/// Where sums over rows go: gain += sum_t dy (x - mean) rstd, bias += sum_t dy and behind +=
/// sum_t dx; null: nowhere. Without a gain the others are null.
struct NormGradients {
  float *gain = nullptr, *bias = nullptr, *behind = nullptr;
};
/// Partial sums of norm_backward(): numbers.
std::int64_t norm_partials(const NormRows& rows, const NormGradients& to);
/// dx = the norm's part of dy, + residual, if any. At most 32,768 features.
const char* norm_backward(Queue queue, const NormRows& rows, const Numbers& dy,
                          const Numbers& residual, const Numbers& dx, const NormGradients& to,
                          const Arrivals& arrivals);
/// sums[c] += sum_t x[t, c].
const char* add_column_sums(Queue queue, const Numbers& x, std::int64_t rows, std::int64_t columns,
                            float* sums);
/// y = x + p + bias, the bias of `columns`.
const char* add_with_bias(Queue queue, const Numbers& x, const Numbers& p, const Numbers& bias,
                          const Numbers& y, std::int64_t rows, std::int64_t columns);

/// AdamW as segments_flat.cc states it, with what depends on the update's number worked out.
struct AdamWStep {
  float decay, beta1, beta2, step, root_correction, epsilon;
};
/// Neighbouring ranges of elements, each up to its end.
struct DecayRanges {
  static constexpr int kMost = 32;
  std::int64_t end[kMost];
  bool decays[kMost];
  int count = 0;
};
/// `elements` of p, m and v, without decay behind the last range. `rounded`, if any, gets p in
/// bf16.
struct AdamWUnit {
  float* p = nullptr;
  const float* g = nullptr;
  float *m = nullptr, *v = nullptr;
  void* rounded = nullptr;
  std::int64_t elements = 0;
  DecayRanges ranges;
};
inline constexpr int kMostUnits = 32;
/// Updates up to kMostUnits of them.
const char* adamw(Queue queue, const AdamWUnit* units, int count, const AdamWStep& step);

/// Tokens' rows of a shard of a table [rows, features] that begins at id `first`.
struct Lookup {
  const std::int64_t* ids = nullptr;  // of each token
  std::int64_t tokens = 0, first = 0, rows = 0, features = 0;
};
/// y[t] = table[ids[t] - first], 0 where another shard has the row.
const char* look_up(Queue queue, const Lookup& lookup, const Numbers& table, const Numbers& y);
/// gradient[ids[t] - first] += dy[t], in order of t.
const char* add_looked_up(Queue queue, const Lookup& lookup, const Numbers& dy, float* gradient);

/// Rows [rows, columns] of what an activation (SiLU, or GELU by tanh) takes and, if any, of what
/// its result gates, both at one stride.
struct Activated {
  Numbers gate, up;
  std::int64_t rows = 0, columns = 0, stride = 0;
  bool gelu = false;
};
/// g = act(gate) up; g is dense.
const char* activation(Queue queue, const Activated& x, const Numbers& g);
/// d_gate = dg up act'(gate), d_up = dg act(gate), at the stride of gate and up; dg is dense.
const char* activation_backward(Queue queue, const Activated& x, const Numbers& dg,
                                const Numbers& d_gate, const Numbers& d_up);
/// The same, and sums[c] += sum_t of d_gate's columns, then of d_up's.
const char* activation_backward_with_sums(Queue queue, const Activated& x, const Numbers& dg,
                                          const Numbers& d_gate, const Numbers& d_up, float* sums,
                                          const Arrivals& arrivals);
/// Partial sums: numbers.
std::int64_t activation_partials(const Activated& x);

/// Heads [batch, tokens, heads, head_dim] by strides; the last dimension is dense.
struct Heads {
  Numbers numbers;
  std::int64_t batch_stride = 0, token_stride = 0, head_stride = 0;
};
/// to = from turned by its position's angle, tables [tokens, head_dim / 2]; sign -1: back.
const char* rotate(Queue queue, const Heads& to, const Heads& from, const float* cos,
                   const float* sin, std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                   std::int64_t head_dim, float sign);
/// q of `heads`, k and v of `kv_heads`; head_dim is even. Tables of angles as of rotate(), or null.
struct HeadsToPack {
  Heads q, k, v;
  std::int64_t batch = 0, tokens = 0, heads = 0, kv_heads = 0, head_dim = 0;
  const float *cos = nullptr, *sin = nullptr;
};
/// to [batch, tokens, (heads + 2 kv_heads) head_dim] = q, k, v, with q and k turned back by their
/// angles, if any; sums[c] += the sum over its rows, unless null.
const char* pack_heads(Queue queue, const HeadsToPack& from, const Numbers& to, float* sums,
                       const Arrivals& arrivals);
/// Partial sums: numbers.
std::int64_t pack_partials(const HeadsToPack& from, bool bf16);

}  // namespace orrery::executor::device
