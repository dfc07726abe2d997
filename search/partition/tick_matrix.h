#pragma once
/// \file
/// Matrices of costs in whole ticks, and their product over (min, +).
#include <cstdint>
#include <vector>

namespace orrery::search {

using Ticks = std::int32_t;
/// A sum of a chain's costs stays below 2^31.
inline constexpr Ticks kNever = 1 << 26;

struct TickMatrix {
  std::size_t rows = 0, columns = 0;
  std::vector<Ticks> cells;
  TickMatrix() = default;
  TickMatrix(std::size_t r, std::size_t c, Ticks value)
      : rows(r), columns(c), cells(r * c, value) {}
  Ticks* row(std::size_t i) { return cells.data() + i * columns; }
  const Ticks* row(std::size_t i) const { return cells.data() + i * columns; }
};
/// min(kNever, min_k a(i, k) + b(k, j)) for all i, j. @pre shapes match.
TickMatrix min_plus(const TickMatrix& a, const TickMatrix& b);

}  // namespace orrery::search
