#pragma once
/// \file
/// Lower bounds of a pipeline, and what they exclude.
///
/// Stage i with n layers and weights (a, b) costs at least V_i(n) = min a Σ n_s + b Σ y_s over its linear relaxation (layer_relaxation.h:
/// the lower hull is one for all n). Two bounds of Σ A + (m - 1) max N (pipeline_program.h), each by a dynamic program over layers
/// so far, rest_i[k] = min_n V_i(n) + rest_{i+1}[k + n]:
///
///   plain       min Σ A_i + (m - 1) min max_i N_i
///   Lagrangian  for w_i >= 0, Σ w_i = 1: (m - 1) max N >= (m - 1) Σ w_i N_i, so Σ_i min (A_i + (m - 1) w_i N_i);
///               a few steps of ascent move weight to the stage that is slowest at the optimum
///
/// Fixing: with slack = cutoff - bound through (stage, n), an option whose reduced cost is not below the slack stands in no answer
/// below the cutoff (Dantzig, Fulkerson, Johnson, Operations Research 2, 1954), and a number of layers without slack in none either. What is
/// left is small, and the exact program runs on it.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "search/layer_relaxation.h"
#include "search/pipeline_program.h"

namespace orrery::search {

/// One stage: its options by memory, and the relaxation under any weights and number of layers.
class StageRelaxation {
 public:
  explicit StageRelaxation(const PipelineStage& stage);
  void weigh(const Weights& weights);

  struct Value {
    __int128 bound = kNoAnswer;  // scaled by nothing: rounded up
    std::int64_t steady_ps = 0;  // of the fractional optimum, rounded
  };
  [[nodiscard]] Value at(int layers) const;
  /// Positions of the options whose use leaves the bound at(layers) + reduced cost below at(layers) + slack.
  [[nodiscard]] std::vector<std::int32_t> keep(int layers, __int128 slack) const;
  /// Price of memory of at(layers), time / bytes; not feasible: no layers fit, at any price.
  struct Price {
    bool feasible = false;
    __int128 time = 0, bytes = 1;
  };
  [[nodiscard]] Price price(int layers) const;
  [[nodiscard]] std::int64_t capacity_bytes() const { return capacity_; }

 private:
  struct Segment {
    std::size_t a = 0, b = 0;  // heavy, light: positions in order_
    bool feasible = false;
  };
  [[nodiscard]] Segment segment(int layers) const;

  std::vector<LayerOption> options_;   // memory ascending
  std::vector<std::int32_t> order_;    // position in the stage's options
  std::vector<__int128> cost_;
  std::vector<std::size_t> hull_;      // memory ascending, cost descending
  std::int64_t capacity_ = 0;
  std::int64_t path_ps_ = 0;
  Weights weights_;
};

class PipelineBound {
 public:
  /// @pre the problem outlives this object.
  explicit PipelineBound(const PipelineProblem& problem);

  /// Lower bound of every answer; kForbidden when some stage fits not even fractionally.
  [[nodiscard]] std::int64_t value() const;
  /// Improves the multipliers and drops numbers of layers that no answer below the cutoff has. False: there is no such answer. Steps of the
  /// ascent move shares of 1/4, 1/8, ... down to 1/finest of a stage's weight.
  static constexpr std::int64_t kFinest = 1 << 30;
  bool tighten(std::int64_t cutoff_ps, std::int64_t finest = kFinest);
  /// Positions of the options of a stage that may stand below the cutoff of the last tighten().
  [[nodiscard]] std::vector<std::int32_t> options(std::size_t stage, int count) const;
  /// Numbers of layers still open.
  [[nodiscard]] const std::vector<int>& counts(std::size_t stage) const { return counts_[stage]; }
  /// A promising partition: one that the Lagrangian bound likes best, or, where the plain bound's parts say that it is cheaper, the one of
  /// least Σ A among those of least max N. (With weights at their best many partitions are about equal for the Lagrangian, lopsided ones too.)
  /// @pre tighten() was true.
  [[nodiscard]] std::vector<int> partition() const;

  [[nodiscard]] Weights weights(std::size_t stage) const;
  [[nodiscard]] std::int64_t unit() const { return unit_; }
  /// Bound of what stages >= next add to (slowest so far, sum so far) with `layers` placed.
  [[nodiscard]] std::int64_t with_rest(std::int64_t slowest, std::int64_t sum, std::size_t next, int layers) const;
  /// Largest N that can stand below the cutoff.
  [[nodiscard]] std::int64_t steady_limit(std::int64_t cutoff_ps) const;
  /// Limits of stage `i`'s points with `count` layers behind a label, constants of the stage taken off.
  [[nodiscard]] FrontierLimits limits(std::size_t i, int layers_before, int count, std::int64_t slowest, std::int64_t sum, std::int64_t constant,
                                      std::int64_t cutoff_ps) const;

 private:
  struct Floor {
    std::int64_t total_ps = kForbidden, steady_ps = kForbidden;
  };
  using Grid = std::vector<std::vector<__int128>>;  // [stage][layers before]
  /// Layers that may stand before a stage, given the counts still open.
  struct Reach {
    std::size_t first = 0, last = 0;  // inclusive; empty when first > last
  };
  void find_reach();
  /// f(layers before, layers after the stage), for all that both ends can reach.
  template <class F>
  void for_each_place(std::size_t stage, int count, F f) const {
    const auto n = static_cast<std::size_t>(count);
    const Reach &here = reach_[stage], &next = reach_[stage + 1];
    for (std::size_t k = std::max(here.first, next.first > n ? next.first - n : 0); k <= here.last && k + n <= next.last; ++k) f(k, k + n);
  }
  void floors();
  void price(const std::vector<std::int64_t>& share);
  [[nodiscard]] std::vector<int> cheapest() const;
  [[nodiscard]] std::vector<int> most_even() const;
  [[nodiscard]] std::size_t index_of(std::size_t stage, int count) const;
  [[nodiscard]] std::int64_t slowest_stage() const;
  [[nodiscard]] __int128 through(std::size_t stage, int count) const;
  [[nodiscard]] __int128 stage_constant(std::size_t stage, const Weights& w) const;

  const PipelineProblem& problem_;
  std::vector<StageRelaxation> stages_;
  std::vector<std::vector<int>> counts_;
  std::vector<Reach> reach_;                           // [stage], and behind the last
  std::vector<std::vector<Floor>> floor_;              // [stage][index in counts_]
  std::vector<std::vector<std::int64_t>> rest_total_, rest_steady_;  // [stage][layers before]
  std::int64_t unit_ = 1;
  std::vector<std::int64_t> share_, done_;             // w_i = share / unit; sums before
  std::vector<std::vector<StageRelaxation::Value>> value_;
  Grid rest_, before_;
  std::int64_t cutoff_ps_ = kForbidden;
};

}  // namespace orrery::search
