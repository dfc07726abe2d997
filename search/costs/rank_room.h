#pragma once
/// \file
/// How many layers fit a pipeline rank of an interleaved or ZB-H1 plan, by a lower bound of its
/// bytes, and the least cycle that leaves room for all layers.
///
/// A rank with n layers of option o cycles in t + n N_o, t what its transfers and ends take, and
/// holds at least bytes_o(n), which grows with n. So N(n) = t + min over o with bytes_o(n) <=
/// memory of n N_o never falls with n, a cycle of X lets a rank hold max {n : N(n) <= X} layers,
/// and the cycle of the step is at least
///
///     C = min X with Σ over ranks of max {n : N(n) <= X} >= L.
///
/// Once whatever the vocabulary (RankRoom), and with its own ends for each: embedding and head only
/// add to what the layers take. The sum grows in steps at the values N(n), so C is one of them, and
/// the first that is enough. Worked example (RankRoom.WorkedExample): four ranks of 1 to 3 layers,
/// N(n) = 10, 20, 90 on the two in between, 15, 30, 45 on the ends: 8 layers need C = 30, 9 need
/// 45.
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/numbers.h"
#include "search/costs/rank_table.h"

namespace orrery::search {

/// Embedding and head (null: whatever the vocabulary), with the changes of layout at them (null:
/// none).
struct RankEnds {
  const costmodel::LayerCost *embedding = nullptr, *head = nullptr, *in = nullptr, *out = nullptr;
  std::int64_t stream_bytes = 0;  // in the layers' layout
  std::int64_t zero_loss_ps = 0;
};

/// Where a rank stands.
struct RankPlace {
  const PlanProblem& problem;
  const RankTransfers& transfers;
  const RankEnds& ends;
  int virtual_stages = 1;
  int rank = 0;
  bool overlaps = true;
  [[nodiscard]] bool first() const { return rank == 0; }
  [[nodiscard]] bool last() const { return rank + 1 == problem.stages; }
  /// The part of a cycle that no layer takes.
  [[nodiscard]] std::int64_t cycle_ps() const;
};

/// Micro-batches that each virtual stage of a rank has forwarded when its first backward begins
/// (plan::pass_order).
struct RankHeld {
  // [k] sum over virtual stages k, k + 1, ...
  std::array<std::int64_t, kMostVirtualStages + 1> behind{};
  std::int64_t first = 0, last = 0;  // of the rank's first and last stage
  // no forward comes after the first backward
  bool all = false;
  explicit RankHeld(const RankPlace& place);
};

/// Lower bound of a rank's bytes: what the first backward behind the warm-up finds alive, and needs
/// itself; with ZB-H1 the first one that weight gradients follow. Up to there passes add what they
/// leave behind, exactly.
class RankBytes {
 public:
  explicit RankBytes(const RankPlace& place);
  [[nodiscard]] std::int64_t at(const costmodel::LayerCost& c, int layers) const;
  /// Largest number of layers in [first, end] that is not above the limit; first - 1: none.
  [[nodiscard]] int most(const costmodel::LayerCost& c, int first, int end,
                         std::int64_t limit_bytes) const;

 private:
  RankHeld held_;
  int virtual_stages_;
  std::int64_t ranks_, rank_;
  bool split_;
  // beside the layers; ZB-H1: behind the first weight gradients
  std::int64_t fixed_ = 0, fixed_late_ = 0;
};

/// Numbers of layers that a rank may have.
struct RankSpan {
  int first = 1, end = 1;
};

/// The layers of one rank.
struct RankFit {
  // [layers - span.first] N(n); kForbidden where nothing fits
  std::vector<std::int64_t> cycle_ps;
  // of a layer's cycle, over options that fit with the fewest layers
  std::int64_t least_layer_ps = kForbidden;
  bool operator==(const RankFit&) const = default;
};
RankFit fit_of(const RankPlace& place, const RankLayout& layout, const RankSpan& span,
               std::int64_t limit_bytes);

/// Numbers of layers that are known to fit a rank with an option exactly, and not to.
struct RankCapacity {
  int fits = 0, fails = 1 << 30;
};

/// All ranks with one layout and one number of virtual stages, whatever the vocabulary.
class RankRoom {
 public:
  /// @pre at least two ranks.
  RankRoom(const RankSpan& span, std::vector<RankFit> ranks);
  /// C of all `layers`; kForbidden: no room. The second: with other ends.
  [[nodiscard]] std::int64_t least_cycle_ps(int layers) const {
    return least_cycle_ps(ranks_.front(), ranks_.back(), layers);
  }
  [[nodiscard]] std::int64_t least_cycle_ps(const RankFit& first, const RankFit& last,
                                            int layers) const;
  [[nodiscard]] const RankSpan& span() const { return span_; }
  [[nodiscard]] const RankFit& fit(int rank) const { return ranks_[as_index(rank)]; }
  [[nodiscard]] std::int64_t least_layer_ps() const { return least_layer_ps_; }
  /// Of a rank, not the first nor the last, with an option.
  RankCapacity& capacity(int rank, std::int32_t option) { return capacity_[{rank, option}]; }

 private:
  RankSpan span_;
  std::vector<RankFit> ranks_;
  // (N(n), ranks) of ranks in between, n beyond the first, ascending
  std::vector<std::pair<std::int64_t, int>> steps_;
  std::int64_t least_ps_ = 0;  // largest N(first) of those
  std::int64_t least_layer_ps_ = kForbidden;
  std::map<std::pair<int, std::int32_t>, RankCapacity> capacity_;
};

}  // namespace orrery::search
