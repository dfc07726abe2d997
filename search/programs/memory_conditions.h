#pragma once
/// \file
/// Linear conditions on memory that every answer of a round (T, γ) of layer_program.h meets, and
/// the bounds they give.
///
/// Transients fall into a few classes, T is the least of its class (all used are of class T or
/// below, one of class T itself); γ is 0, or the least gather where every layer gathers. Level
/// θ <= T: the last layer with t >= θ has only layers with less behind it, so
///
///     Σ x_s w_s <= budget - θ,   w_s = m_s - [t_s < θ] σ_s;
///
/// the least level is the last layer's own: budget - max(t_0, θ + γ). Any mix of levels with
/// weights is a condition as well (a surrogate constraint; Glover, Operations Research 13, 1965).
/// The mix matters: transients of recomputing layers and stashes of the others compete for the same
/// bytes, and each level alone lets one of them through. Weights in sixteenths by ascent: more to
/// the level that the fractional optimum breaks most, while the bound rises.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "search/programs/layer_order.h"
#include "search/programs/layer_program.h"
#include "search/programs/layer_relaxation.h"
#include "search/programs/layout_paths.h"

namespace orrery::search {

/// One condition Σ x w <= capacity with its relaxation.
struct MemorySide {
  std::int64_t capacity = 0;
  std::vector<Item> items;
  LinearRelaxation lp;
  std::vector<__int128> reduced;  // [item] scaled reduced cost
  std::vector<__int128>
      // few layouts: [set C] scaled: min over S ⊇ C of a H(S) + Σ_{l in S \ C} least reduced
      // cost in l
      layouts_cost;
  __int128 widest = 0;     // least reduced cost of an option with transient T
  __int128 narrowest = 0;  // least reduced cost of an option with g = γ
  std::int64_t least_weight = 0;
};

class MemoryConditions {
 public:
  static constexpr std::size_t kSides = 3;
  static constexpr __int128 kNever = static_cast<__int128>(1) << 122;

  MemoryConditions(const LayerProblem& problem, const std::vector<Column>& columns,
                   const LayoutPaths& paths, const Weights& weights);

  /// A lower bound of a round's objective by the least level alone, in O(columns); kNoAnswer when
  /// nothing fits.
  [[nodiscard]] __int128 least_level(std::int64_t transient, std::int64_t neighbours);
  /// Chooses the round's conditions: the best mix first, then the least and the largest level.
  /// Returns a lower bound of its objective, kNoAnswer when nothing fits.
  __int128 choose(std::int64_t transient, std::int64_t neighbours);
  /// Reduced costs of all sides; a better bound.
  __int128 price();

  [[nodiscard]] std::span<const MemorySide> sides() const { return {sides_.data(), active_}; }
  /// Scaled lower bound of what transitions, and layouts still missing, add to an answer that uses
  /// the layouts of `set` and maybe more.
  [[nodiscard]] __int128 layouts_cost(const MemorySide& side, std::uint64_t set) const {
    if (paths_.exact()) return side.layouts_cost[set];
    const std::int64_t path = paths_.superset_cost(set);
    return path >= kForbidden ? kNever : side.lp.scale * weights_.steady * path;
  }
  /// Items are the allowed columns.
  [[nodiscard]] const std::vector<std::size_t>& allowed() const { return allowed_; }

 private:
  static constexpr std::size_t kLevels = 5;
  static constexpr int kUnit = 16;
  using Mix = std::array<int, kLevels>;  // weights of the levels, Σ = kUnit

  [[nodiscard]] const LayerOption& option(std::size_t item) const {
    return columns_[allowed_[item]].values;
  }
  [[nodiscard]] bool allowed(const Column& c, std::int64_t transient,
                             std::int64_t neighbours) const {
    return c.round_transient_bytes <= transient && c.round_neighbour_bytes >= neighbours;
  }
  [[nodiscard]] __int128 cost(const LayerOption& o) const {
    return static_cast<__int128>(weights_.steady) * o.steady_ps +
           static_cast<__int128>(weights_.once) * o.once_ps;
  }
  void allow();
  [[nodiscard]] std::int64_t capacity(std::size_t level) const;
  [[nodiscard]] std::int64_t least_capacity(std::int64_t level_bytes,
                                            std::int64_t neighbours) const;
  [[nodiscard]] std::int64_t weight(const LayerOption& o, std::size_t level) const;
  void fill(MemorySide& side, const Mix& mix) const;
  void improve(MemorySide& side, Mix& mix);
  [[nodiscard]] int most_broken(const MemorySide& side) const;
  void price(MemorySide& side) const;

  const LayerProblem& problem_;
  const std::vector<Column>& columns_;
  const LayoutPaths& paths_;
  Weights weights_;
  std::int64_t transient_ = 0, neighbours_ = 0;
  std::vector<Item> whole_;                       // [column] its memory
  std::vector<std::uint32_t> by_memory_, order_;  // all columns; those of a round
  std::vector<std::size_t> allowed_;
  std::vector<__int128> costs_;  // [item]
  std::vector<std::int64_t> all_levels_;
  std::array<std::int64_t, kLevels> levels_{};
  std::size_t level_count_ = 0;
  MemorySide trial_;
  std::array<MemorySide, kSides> sides_;
  std::size_t active_ = 0;
};

}  // namespace orrery::search
