#pragma once
/// \file
/// Layouts of an instance's transition table, and shortest walks through sets of them.
#include <cstdint>
#include <optional>
#include <vector>

#include "search/table/instance.h"

namespace orrery::search {

/// Most layouts that walks are tabulated for: 2^n · n^3 steps.
inline constexpr std::size_t kMaxWalkLayouts = 7;

class InstanceLayouts {
 public:
  /// Options that cost nothing to exchange and the same to all others are one layout. Nothing when
  /// the instance has several tables, too many layouts, a diagonal that is not zero, or the table
  /// is no metric.
  static std::optional<InstanceLayouts> find(const Instance& instance);

  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::size_t of(std::size_t option) const { return of_.empty() ? 0 : of_[option]; }
  [[nodiscard]] std::int64_t transition(std::size_t from, std::size_t to) const {
    return between_[from * count_ + to];
  }
  /// Cheapest path from `from` to `to` through every layout of `set`, each once; kForbidden when
  /// from = to in a larger set.
  [[nodiscard]] std::int64_t path(std::uint32_t set, std::size_t from, std::size_t to) const {
    return paths_[(set * count_ + from) * count_ + to];
  }
  /// The same with from = to allowed: back to where it began.
  [[nodiscard]] std::int64_t walk(std::uint32_t set, std::size_t from, std::size_t to) const;
  /// Layouts of that walk in order; a round trip names its first layout twice.
  [[nodiscard]] std::vector<std::size_t> order(std::uint32_t set, std::size_t from,
                                               std::size_t to) const;

 private:
  void tabulate();
  /// Cheapest path through `set` from `from`, and on to `to`.
  [[nodiscard]] std::int64_t path_on(std::uint32_t set, std::size_t from, std::size_t to) const;

  std::size_t count_ = 1;
  std::vector<std::size_t> of_;        // [option]; empty: all 0
  std::vector<std::int64_t> between_;  // [from * count + to]
  std::vector<std::int64_t> paths_;    // [set][from][to]
};

}  // namespace orrery::search
