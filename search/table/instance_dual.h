#pragma once
/// \file
/// Paths through an instance when memory has a price instead of a limit, and the price that bounds
/// best.
///
/// With a price λ = e / d >= 0 of memory, every answer that keeps the budget costs at least
///
///     L(λ) = min over paths of [ Σ time + Σ transitions + λ Σ memory ] - λ budget
///
/// (Lagrangian relaxation; Everett, Operations Research 11 (3), 1963). L is concave and piecewise
/// linear. Its maximum lies where two paths tie, one over the budget (T_a, M_a) and one within
/// (T_b, M_b): λ = (T_b - T_a) / (M_a - M_b). From the path of least time and that of least memory
/// each step prices by the line through both and replaces one of them, until no path lies below the
/// line. All scaled by d, in 128 bits, no rounding.
///
/// Recurrence of a price (P: least price of the layers before i, by class c of the option at i;
/// options of one class cost the same to enter from anywhere):
///
///     P_0[c] = 0,  P_i[c] = min_s ( P_{i-1}[class(s)] + d time(s) + e memory(s) + d R(s, c) ).
///
/// State: (layer, class); order: layers forward; cost O(layers · options · classes) a price;
/// exact over all paths. Example: two layers, options (time, memory) (1, 8), (4, 2) and (1, 6),
/// (2, 3), budget 11: fastest (2, 14), least memory (6, 5); between them (3, 11) lies below the
/// line and keeps the budget: λ = (3 - 2) / (14 - 11) = 1/3, L = 2 + 14/3 - 11/3 = 3.
#include <cstdint>
#include <tuple>
#include <vector>

#include "search/table/instance.h"

namespace orrery::search {

using Wide = __int128;

/// Options of every layer, those that cost the same to enter from each option before put into one
/// class.
class InstanceClasses {
 public:
  explicit InstanceClasses(const Instance& instance);
  [[nodiscard]] std::size_t count(std::size_t layer) const { return representative_[layer].size(); }
  [[nodiscard]] std::size_t of(std::size_t layer, std::size_t option) const {
    return of_[layer][option];
  }
  /// Transition from an option of `boundary` to any option of the class behind it.
  [[nodiscard]] std::int64_t transition(std::size_t boundary, std::size_t from,
                                        std::size_t to) const {
    return instance_->transition(boundary, from, representative_[boundary + 1][to]);
  }

 private:
  const Instance* instance_;
  std::vector<std::vector<std::size_t>> of_, representative_;  // [layer][option], [layer][class]
};

struct PathTotals {
  std::int64_t time_ps = 0, memory_bytes = 0;
};

/// Prices of memory; the fastest path has {1, 0}, that of least memory {0, 1}.
struct MemoryPrice {
  std::int64_t scale = 1, price = 0;  // d, e
  [[nodiscard]] Wide of(std::int64_t time_ps, std::int64_t memory_bytes) const {
    return static_cast<Wide>(scale) * time_ps + static_cast<Wide>(price) * memory_bytes;
  }
  /// A bound that is priced so, in picoseconds: rounded up.
  [[nodiscard]] std::int64_t bound_ps(Wide priced) const {
    return static_cast<std::int64_t>(priced > 0 ? (priced + scale - 1) / scale : 0);
  }
};

/// Of a price: for every (layer, class) the cheapest way through the layers before it, ties to the
/// lower memory, then to the lower time.
struct Potentials {
  struct Way {
    Wide value = 0;
    PathTotals totals = {};
    std::int32_t last = -1;  // the option of the layer before
    bool operator<(const Way& o) const {
      return std::tie(value, totals.memory_bytes, totals.time_ps) <
             std::tie(o.value, o.totals.memory_bytes, o.totals.time_ps);
    }
  };
  MemoryPrice price;
  // [layer][class]; one more layer, of one class, behind the last
  std::vector<std::vector<Way>> ways;
  /// Of the cheapest way through all layers.
  [[nodiscard]] const PathTotals& totals() const { return ways.back().front().totals; }
  [[nodiscard]] Wide value() const { return ways.back().front().value; }
};
Potentials price_paths(const Instance& instance, const InstanceClasses& classes,
                       const MemoryPrice& price);

/// Options of the cheapest way to (layer, class), one for each layer before it.
OptionPath path_to(const InstanceClasses& classes, const Potentials& potentials, std::size_t layer,
                   std::size_t of_class);

struct InstanceDual {
  bool feasible = false;
  PathTotals least_memory;    // with the least memory
  MemoryPrice best;           // λ, cancelled
  std::int64_t bound_ps = 0;  // L(λ), rounded up
  Potentials potentials;      // of λ
  // a path that keeps the budget; equals the bound when the fastest one does
  PathTotals within;
  OptionPath within_path;
  // one over the budget that costs the same under λ; empty when the fastest path fits
  OptionPath beyond_path;
};
InstanceDual solve_dual(const Instance& instance, const InstanceClasses& classes);

}  // namespace orrery::search
