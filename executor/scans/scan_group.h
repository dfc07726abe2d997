#pragma once
/// What a scan's recurrence reads, made of u and the weights, one group of one sequence and a tile
/// of tokens at a time; and the way back of its gradients. In fp32, of head j, of token t:
///
///   x, B, C    silu of the convolution (lightning: silu of u); delta rule: B = b / |b|, C = c /
///              (|c| sqrt(N)), |b|^2 = sum b^2 + 1e-6
///   Mamba-2    d = softplus(u_d + bias), a = e^(-e^A d), D the skip
///   delta      d = sigma(u_d), a = e^(-e^A softplus(u_a + bias))
///   lightning  d = 1, a = e^(-2^(-8 (h + 1) / n) (1 - l / (L - 1) + 1e-5)), head h of n in all,
///              block l of L (MiniMax-01's; L - 1 at least 1e-5)
///
/// Columns and weights as in model/scan.h.
#include <ATen/core/Tensor.h>

#include <vector>

#include "base/numbers.h"
#include "executor/scans/convolution.h"
#include "executor/scans/gated_norm.h"
#include "executor/scans/recurrence.h"
#include "executor/segments/segments.h"
#include "model/scan.h"

namespace orrery::executor::kernels {

/// A tensor of the compute type, read and written as fp32; places count elements.
class Numbers {
 public:
  explicit Numbers(const at::Tensor& t);
  void load(std::int64_t first, std::int64_t n, float* to) const;
  void store(const float* from, std::int64_t n, std::int64_t first) const;

 private:
  void* data_;
  bool bf16_;
};

/// Sizes and weights of a scan.
struct ScanMixer {
  ScanMixer(const model::SegmentShape& shape, const std::vector<at::Tensor>& weights,
            const SegmentContext& context);

  model::SegmentShape s;
  std::int64_t n, size, groups, state, per_group;  // heads, P, groups, N, heads of a group
  std::int64_t values, keys, steps;                // n P, G N, columns of steps of a head
  bool lightning;
  std::vector<float> rates, skips, step_biases, decays;  // of each head; decays: lightning's
  at::Tensor taps, vectors, gains;                       // fp32
  GatedNorm norm;

  [[nodiscard]] ScanHead head() const { return {state, size, s.delta}; }
  [[nodiscard]] std::int64_t group_values() const { return per_group * size; }
  /// Channels of a group's convolution: of its x, B and C.
  [[nodiscard]] std::int64_t channels() const { return group_values() + 2 * state; }
  /// visit(first of all channels, first of the group's, how many): its x, B and C.
  template <class Visit>
  void each_part(std::int64_t group, Visit visit) const {
    visit(group * group_values(), std::int64_t{0}, group_values());
    visit(values + group * state, group_values(), state);
    visit(values + keys + group * state, group_values() + state, state);
  }
  /// Column of u that channel 0 reads, and that the steps of head 0 have.
  [[nodiscard]] std::int64_t first_channel() const { return values; }
  [[nodiscard]] std::int64_t first_step() const { return 2 * (values + keys); }
  [[nodiscard]] Convolution convolution(std::int64_t group) const;
  [[nodiscard]] const float* gain(std::int64_t feature) const {
    return gains.const_data_ptr<float>() + feature % gains.numel();
  }
};

/// Sums over tokens of the gradients of a group's weights; skip, rate (of A), step bias: by head.
struct GroupGradients {
  explicit GroupGradients(const ScanMixer& m);
  std::vector<double> taps, bias, rates, skips, step_biases, gains;
  /// Added to the gradients of the segment's weights.
  void add_to(const ScanMixer& m, std::int64_t group, std::vector<at::Tensor>& gradients) const;
};

class ScanTile {
 public:
  /// For up to `tokens` of them; `back`: with room for gradients.
  ScanTile(const ScanMixer& m, std::int64_t sequence, std::int64_t group, std::int64_t tokens,
           bool back);
  /// Tokens [first, first + rows) of the sequence.
  void load(const Numbers& u, std::int64_t first, std::int64_t rows);
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  /// Of head j of the group.
  [[nodiscard]] ScanToken token(std::int64_t j, std::int64_t t) const;
  /// Where gradients of x, B and C of the tile come together, B's and C's over heads; starts at 0.
  [[nodiscard]] ScanGradient gradient(std::int64_t j, std::int64_t t);
  /// What came together at `token`, of decay and step.
  void keep_steps(std::int64_t j, std::int64_t t, const ScanGradient& g);
  /// Tiles go from the last to the first: gradients of u and of weights.
  void store_gradients(const Numbers& du, GroupGradients& sums);
  /// Where row t of the tile begins in a tensor of `columns`, at one of them.
  [[nodiscard]] std::int64_t place(std::int64_t t, std::int64_t columns,
                                   std::int64_t column) const {
    return (sequence_ * m_.s.tokens + first_ + t) * columns + column;
  }
  [[nodiscard]] std::int64_t group() const { return group_; }

 private:
  void load_steps(const Numbers& u);
  [[nodiscard]] float key_scale(std::int64_t part) const;
  void norm_keys();
  void norm_keys_back();
  void store_steps(const Numbers& du, GroupGradients& sums);

  const ScanMixer& m_;
  std::int64_t sequence_, group_, first_ = 0, rows_ = 0;
  Convolution convolution_;
  std::vector<float> u_;             // [history + rows, channels]
  std::vector<float> p_;             // [rows, channels], before silu
  std::vector<float> x_;             // [rows, channels], behind it
  std::vector<float> rnorms_;        // [rows, 2]: 1 / |b|, 1 / |c|
  std::vector<float> raw_steps_;     // [rows, heads * steps]
  std::vector<float> steps_, soft_;  // [rows, heads]: d; softplus
  std::vector<float> decays_;        // [rows, heads]
  std::vector<float> d_;             // [rows + history, channels], gradients
  std::vector<float> d_u_;           // [rows, channels]
  std::vector<float> d_decays_, d_steps_;
};

}  // namespace orrery::executor::kernels
