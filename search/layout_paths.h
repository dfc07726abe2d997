#pragma once
/// \file
/// Shortest paths through sets of layouts: H(C) of layer_program.h.
///
/// h[C][l] = cost of the cheapest order of the layouts in C that ends in l, entry counted:
/// h[{l}][l] = E(l), h[C][l] = min_{k in C \ l} h[C \ l][k] + R(k, l); H(C) = min_l h[C][l] + X(l). O(2^K K^2) for K
/// layouts.
#include <cstdint>
#include <vector>

#include "search/layer_program.h"

namespace orrery::search {

class LayoutPaths {
 public:
  explicit LayoutPaths(const LayerProblem& problem);
  /// H(C); kForbidden when no order is allowed. C = 0 costs 0.
  [[nodiscard]] std::int64_t cost(std::uint32_t set) const { return cost_[set]; }
  /// min of H over the supersets of C.
  [[nodiscard]] std::int64_t superset_cost(std::uint32_t set) const { return superset_[set]; }
  [[nodiscard]] std::int64_t entry(int layout) const;
  [[nodiscard]] std::int64_t transition(int from, int to) const;
  [[nodiscard]] std::int64_t exit(int layout) const;

 private:
  int layouts_;
  std::vector<std::int64_t> transition_;
  std::vector<std::int64_t> entry_, exit_;
  std::vector<std::int64_t> cost_;      // [set]
  std::vector<std::int64_t> superset_;  // [set]
};

}  // namespace orrery::search
