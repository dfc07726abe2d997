#pragma once
/// \file
/// Shortest paths through sets of layouts: H(C) of layer_program.h.
///
/// h[C][l] = cost of the cheapest order of the layouts in C that ends in l, entry counted:
///
///     h[{l}][l] = E(l),   h[C][l] = min_{k in C \ l} h[C \ l][k] + R(k, l)
///     H(C) = min_l h[C][l] + X(l)
///
/// O(2^K K^2) for K layouts; with more than kExactLayouts, a lower bound instead: E(l) + X(l) of
/// one layout, min E + (|C| - 1) min R + min X of more.
#include <cstdint>
#include <vector>

#include "search/programs/layer_program.h"

namespace orrery::search {

class LayoutPaths {
 public:
  explicit LayoutPaths(const LayerProblem& problem);
  static constexpr int kExactLayouts = 6;
  /// True when cost() is H(C).
  [[nodiscard]] bool exact() const { return layouts_ <= kExactLayouts; }
  [[nodiscard]] int layouts() const { return layouts_; }
  /// H(C), or a lower bound of it; kForbidden when no order is allowed. C = 0 costs 0.
  [[nodiscard]] std::int64_t cost(std::uint64_t set) const {
    if (exact()) return cost_[set];
    return set == 0 ? 0 : bounded(set);
  }
  /// min of H over the supersets of C, or a lower bound of it.
  [[nodiscard]] std::int64_t superset_cost(std::uint64_t set) const {
    return exact() ? superset_[set] : bounded_superset(set);
  }
  [[nodiscard]] std::int64_t entry(int layout) const;
  [[nodiscard]] std::int64_t transition(int from, int to) const;
  [[nodiscard]] std::int64_t exit(int layout) const;

 private:
  void fill();
  [[nodiscard]] std::int64_t bounded(std::uint64_t set) const;
  [[nodiscard]] std::int64_t bounded_superset(std::uint64_t set) const;

  int layouts_;
  std::vector<std::int64_t> transition_;
  std::vector<std::int64_t> entry_, exit_;
  std::vector<std::int64_t> cost_;      // [set]
  std::vector<std::int64_t> superset_;  // [set]
  std::int64_t least_entry_ = 0, least_exit_ = 0, least_transition_ = 0;
};

}  // namespace orrery::search
