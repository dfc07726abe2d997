#pragma once
/// \file
/// Lower bounds of a pipeline, and what they exclude.
///
/// Stage i with n layers and weights (a, b) costs at least its linear relaxation
/// (layer_relaxation.h) min a Σ n_s + b Σ y_s. The lower hull of (memory, cost) is one for all n,
/// and by duality the relaxation is a maximum of lines in n, one for each slope μ of the hull:
///
///     V_i(n) = constants_i + max over μ in {0} and the slopes of
///              n min_s (a n_s + b y_s + μ m_s) - μ capacity_i
///
/// With μ rounded to 1 / kScale, sums are exact integers and V_i is convex, whence nothing here
/// walks layers (convex_cost.h). Two bounds of Σ A + (m - 1) max N (pipeline_program.h):
///
///   plain       min Σ A_i + (m - 1) min max_i N_i
///   Lagrangian  for w_i >= 0, Σ w_i = 1: (m - 1) max N >= (m - 1) Σ w_i N_i, so
///               min Σ_i (A_i + (m - 1) w_i N_i); a few steps of ascent move weight to the stage
///               that is slowest at the optimum
///
/// Fixing: with slack = cutoff - bound through (stage, n), an option whose reduced cost is not
/// below the slack stands in no answer below the cutoff (Dantzig, Fulkerson, Johnson, Operations
/// Research 2, 1954), and a number of layers without slack in none either: V_i being convex, the
/// numbers left are an interval. What is left is small, and the exact program runs on it.
///
/// Cost: O(stages · hull · log) a step of the ascent. Tables by layers, for the labels of the
/// exact program, are made when that asks, between the numbers of layers left.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "search/programs/convex_cost.h"
#include "search/programs/layer_relaxation.h"
#include "search/programs/pipeline_program.h"

namespace orrery::search {

/// One stage: its options by memory, and the relaxation under any weights and number of layers.
class StageRelaxation {
 public:
  static constexpr std::int64_t kScale = std::int64_t{1} << 26;

  /// @pre the stage outlives this object.
  explicit StageRelaxation(const PipelineStage& stage);
  void weigh(const Weights& weights);

  struct Value {
    __int128 bound = kNoAnswer;  // scaled by nothing: rounded up
    std::int64_t steady_ps = 0;  // of the fractional optimum, rounded
  };
  [[nodiscard]] Value at(int layers) const;
  /// V of the header, times kScale, `constant` (not scaled) included, for fewest..most layers or as
  /// many of them as fit.
  [[nodiscard]] ConvexCost cost(int fewest, int most, __int128 constant) const;
  /// Positions of the options whose use leaves the bound at(layers) + reduced cost below at(layers)
  /// + slack.
  [[nodiscard]] std::vector<std::int32_t> keep(int layers, __int128 slack) const;
  /// Price of memory of at(layers), time / bytes; not feasible: no layers fit, at any price.
  struct Price {
    bool feasible = false;
    __int128 time = 0, bytes = 1;
  };
  [[nodiscard]] Price price(int layers) const;
  [[nodiscard]] std::int64_t capacity_bytes() const { return capacity_; }
  /// Most layers that use the hull's two options of price(layers) too. @pre price(layers).feasible.
  [[nodiscard]] int alike_up_to(int layers) const;

 private:
  struct Segment {
    std::size_t a = 0, b = 0;  // heavy, light: positions in options_
    bool feasible = false;
  };
  [[nodiscard]] Segment segment(int layers) const;

  [[nodiscard]] __int128 cost_of(const LayerOption& o) const {
    return static_cast<__int128>(weights_.steady) * o.steady_ps +
           static_cast<__int128>(weights_.once) * o.once_ps;
  }

  const std::vector<LayerOption>* given_;  // of the stage
  std::vector<LayerOption> options_;       // those that may stand on a hull, memory ascending
  std::vector<__int128> cost_;             // [option]
  std::vector<std::size_t> hull_;          // memory ascending, cost descending
  std::int64_t capacity_ = 0;
  std::int64_t path_ps_ = 0;
  Weights weights_;
};

class PipelineBound {
 public:
  static constexpr std::int64_t kScale = StageRelaxation::kScale;
  /// @pre the problem outlives this object.
  explicit PipelineBound(const PipelineProblem& problem);

  /// Lower bound of every answer; kForbidden when some stage fits not even fractionally.
  [[nodiscard]] std::int64_t value() const;
  /// Improves the multipliers and drops numbers of layers that no answer below the cutoff has.
  /// False: there is no such answer. Steps of the ascent move shares of 1/4, 1/8, ... down to
  /// 1/finest of a stage's weight.
  static constexpr std::int64_t kFinest = 1 << 30;
  bool tighten(std::int64_t cutoff_ps, std::int64_t finest = kFinest);
  /// Positions of the options of a stage that may stand below the cutoff of the last tighten().
  [[nodiscard]] std::vector<std::int32_t> options(std::size_t stage, int count) const;
  /// Numbers of layers still open: fewest() to most().
  [[nodiscard]] const ConvexCost& counts(std::size_t stage) const { return weighed_.cost[stage]; }
  /// A promising partition: one that the Lagrangian bound likes best, or, where the plain bound's
  /// parts say that it is cheaper, the one of least Σ A among those of least max N. (With weights
  /// at their best many partitions are about equal for the Lagrangian, lopsided ones too.)
  /// @pre tighten() was true.
  [[nodiscard]] std::vector<int> partition() const;

  [[nodiscard]] Weights weights(std::size_t stage) const {
    return weights_of(weighed_.share[stage]);
  }
  [[nodiscard]] std::int64_t unit() const { return unit_; }
  /// One for each stage, for others to weigh when this object is no longer asked.
  [[nodiscard]] std::vector<StageRelaxation> relaxations() && { return std::move(stages_); }
  /// Bound of what stages >= next add to (slowest so far, sum so far) with `layers` placed. @pre
  /// tighten() was true; the same below.
  [[nodiscard]] std::int64_t with_rest(std::int64_t slowest, std::int64_t sum, std::size_t next,
                                       int layers);
  /// Limits of stage `i`'s points with `count` layers behind a label, constants of the stage taken
  /// off.
  [[nodiscard]] FrontierLimits limits(std::size_t i, int layers_before, int count,
                                      std::int64_t slowest, std::int64_t sum, std::int64_t constant,
                                      std::int64_t cutoff_ps);

 private:
  /// The Lagrangian bound under weights w_i = share / unit.
  struct Weighed {
    std::vector<std::int64_t> share, done;  // [stage]; sums before
    std::vector<ConvexCost> cost;           // [stage] for weights()
    std::vector<int> partition;             // the cheapest
    __int128 least = kNever;
  };
  /// What stages >= i add to with some layers before them.
  struct Rest {
    std::int64_t total_ps = kForbidden, steady_ps = kForbidden;
    __int128 weighted = kNever;  // in units
  };
  [[nodiscard]] Weights weights_of(std::int64_t share) const {
    return {unit_ + (problem_.micro_batches - 1) * share, unit_};
  }
  bool restrict_counts();
  void plain();
  [[nodiscard]] Weighed price(std::vector<std::int64_t> share);
  void ascend(std::int64_t finest);
  void fix_counts();
  [[nodiscard]] std::int64_t steady_limit(std::int64_t cutoff_ps) const;
  [[nodiscard]] std::size_t slowest_stage() const;
  [[nodiscard]] __int128 slack(std::size_t stage, int count) const;
  [[nodiscard]] __int128 stage_constant(std::size_t stage, const Weights& w) const;
  [[nodiscard]] std::vector<int> most_even() const;
  [[nodiscard]] __int128 estimate(const std::vector<int>& counts) const;
  void tabulate();
  void tabulate_slowest(std::size_t stage);
  [[nodiscard]] const Rest& rest(std::size_t next, int layers);

  const PipelineProblem& problem_;
  std::vector<StageRelaxation> stages_;
  std::vector<ConvexCost> total_, steady_;  // [stage] V for (1, 1) and (1, 0)
  __int128 least_total_ = kNever, least_slowest_ = kNever;
  std::int64_t unit_ = 1;
  Weighed weighed_;
  std::optional<LeastSum> sum_;  // of weighed_.cost
  std::int64_t cutoff_ps_ = kForbidden;
  std::vector<int> first_place_;  // [stage] fewest layers before it
  // [stage][layers before - first_place_]; empty: not asked for yet
  std::vector<std::vector<Rest>> rest_;
};

}  // namespace orrery::search
