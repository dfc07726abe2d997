#pragma once
/// \file
/// Linear relaxation of the layer program without transitions:
/// min Σ x_s c_s, Σ x_s = L, Σ x_s m_s <= capacity, x >= 0 real.
///
/// Its optimum is two neighbours a (fast, heavy) and b (slow, light) of the lower convex hull of
/// the points (m_s, c_s), around the mean capacity / L. With d = m_a - m_b and e = c_b - c_a (price
/// of memory λ = e / d), all values scaled by d to stay integer:
///
///     d LP  = d L c_a + e (L m_a - capacity)
///     d r_s = d (c_s - c_a) + e (m_s - m_a) >= 0
///
/// When the cheapest option fits everywhere, λ = 0: a = b = that option, d = 1, e = 0.
/// Example: (m, c) = (10, 1), (4, 3), L = 4, capacity 28: d = 6, e = 2,
/// 6 LP = 24 + 2 (40 - 28) = 48, LP = 8.
#include <cstdint>
#include <span>
#include <vector>

namespace orrery::search {

struct Item {
  __int128 cost = 0;
  std::int64_t memory = 0;
};

/// @pre b > 0.
inline __int128 ceil_divide(__int128 a, __int128 b) { return a > 0 ? (a + b - 1) / b : a / b; }

struct LinearRelaxation {
  bool feasible = false;
  std::size_t a = 0, b = 0;
  __int128 scale = 1;  // d
  __int128 price = 0;  // e
  __int128 value = 0;  // d LP
  /// LP rounded up: every integer answer costs at least this.
  [[nodiscard]] __int128 bound() const { return ceil_divide(value, scale); }
  /// LP > other's LP. Products of value and scale have more than 128 bits: whole parts first.
  [[nodiscard]] bool above(const LinearRelaxation& other) const {
    const __int128 whole = value / scale, others = other.value / other.scale;
    return whole != others ? whole > others
                           : value % scale * other.scale > other.value % other.scale * scale;
  }
  [[nodiscard]] __int128 reduced(const Item& item, const Item& fast) const {
    return scale * (item.cost - fast.cost) + price * (item.memory - fast.memory);
  }
};

/// O(n log n). @pre layers >= 1.
LinearRelaxation relax(std::span<const Item> items, int layers, std::int64_t capacity);
/// Of those items that `order` names, in the order of sort_by_memory(); they are moved. O(n).
LinearRelaxation relax(std::span<const Item> items, std::span<std::uint32_t> order, int layers,
                       std::int64_t capacity);
/// Memory ascending, then cost.
void sort_by_memory(std::span<const Item> items, std::span<std::uint32_t> order);

}  // namespace orrery::search
