#pragma once
/// \file
/// Matrices of costs in whole ticks, and the loops over all of their cells.
#include <cstdint>
#include <span>
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

/// Time of moves in units of a tick: so many where there is any, and so many for each part.
struct MoveTicks {
  double in_host_latency = 0, in_host_part = 0, across_latency = 0, across_part = 0;
};
/// What moves takes a tick more than it fills. @pre equal sizes.
void add_ticks(const MoveTicks& terms, std::span<const std::int32_t> in_hosts,
               std::span<const std::int32_t> across, std::span<Ticks> ticks);
/// a(i, j) = min(a(i, j) + b(j, i), kNever). @pre b has a's shape transposed.
void add_transposed(const TickMatrix& b, TickMatrix& a);

}  // namespace orrery::search
