#pragma once
/// Conversions between the kinds of numbers that indices, ids and formulas are made of, and whole
/// quotients.

#include <cstddef>
#include <cstdint>
#include <limits>

namespace orrery::base {

/// An integer in a formula. Exact to 2^53.
constexpr double real(auto n) { return static_cast<double>(n); }

/// Place in a container. @pre n >= 0.
constexpr std::size_t as_index(auto n) { return static_cast<std::size_t>(n); }

/// As ids and ranks are counted. @pre 0 <= n < 2^32.
constexpr std::uint32_t as_u32(auto n) { return static_cast<std::uint32_t>(n); }
constexpr int as_int(auto n) { return static_cast<int>(n); }
constexpr std::uint32_t count_of(const auto& container) { return as_u32(container.size()); }

/// @pre a >= 0, b > 0.
constexpr auto ceil_div(auto a, auto b) { return (a + b - 1) / b; }

/// value * times / parts without overflow between, rounded down. @pre all >= 0, parts > 0.
constexpr std::int64_t mul_div(std::int64_t value, std::int64_t times, std::int64_t parts) {
  return static_cast<std::int64_t>(static_cast<__int128>(value) * times / parts);
}
/// The same, rounded up.
constexpr std::int64_t mul_div_up(std::int64_t value, std::int64_t times, std::int64_t parts) {
  return static_cast<std::int64_t>((static_cast<__int128>(value) * times + parts - 1) / parts);
}

/// The bits of `value` that `mask` selects, side by side; and back to their places.
constexpr std::uint32_t extract_bits(std::uint32_t value, std::uint32_t mask) {
  std::uint32_t bits = 0;
  for (std::uint32_t place = 1; mask != 0; mask &= mask - 1, place <<= 1)
    if ((value & mask & (~mask + 1)) != 0) bits |= place;
  return bits;
}
constexpr std::uint32_t deposit_bits(std::uint32_t bits, std::uint32_t mask) {
  std::uint32_t value = 0;
  for (; mask != 0; mask &= mask - 1, bits >>= 1)
    if ((bits & 1) != 0) value |= mask & (~mask + 1);
  return value;
}

/// The first of the items with the least distance (>= 0); null when there is none, or all are too
/// far.
inline constexpr double kTooFar = std::numeric_limits<double>::infinity();
auto closest(const auto& items, const auto& distance) {
  decltype(items.data()) best = nullptr;
  double least = kTooFar;
  for (const auto& item : items) {
    if (const double d = distance(item); d < least) {
      best = &item;
      least = d;
      if (least == 0) break;
    }
  }
  return best;
}

}  // namespace orrery::base

namespace orrery {  // plain words, in every room
using base::as_index, base::as_int, base::as_u32, base::ceil_div, base::count_of,
    base::deposit_bits, base::extract_bits, base::mul_div, base::mul_div_up, base::real;
}  // namespace orrery
