
#include "search/partition/tick_matrix.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::search {
namespace {

constexpr std::size_t kTogether = 4;  // rows of b that one pass over a row of c reads

#if defined(__x86_64__) && defined(__gnu_linux__)
#define ORRERY_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ORRERY_WIDE
#endif

using Rows = std::array<const Ticks*, kTogether>;

ORRERY_WIDE void lower(Ticks* c, const Rows& b, const std::array<Ticks, kTogether>& a,
                       std::size_t columns) {
  const Ticks *b0 = b[0], *b1 = b[1], *b2 = b[2], *b3 = b[3];
  for (std::size_t j = 0; j < columns; ++j) {
    const Ticks left = std::min(a[0] + b0[j], a[1] + b1[j]);
    const Ticks right = std::min(a[2] + b2[j], a[3] + b3[j]);
    c[j] = std::min(c[j], std::min(left, right));
  }
}

ORRERY_WIDE Ticks greatest(const Ticks* row, std::size_t columns) {
  Ticks most = 0;
  for (std::size_t j = 0; j < columns; ++j) most = std::max(most, row[j]);
  return most;
}

}  // namespace

namespace {

/// Rows of b in ascending order of their least cell.
std::vector<std::size_t> by_least(const TickMatrix& b) {
  std::vector<std::pair<Ticks, std::size_t>> order(b.rows);
  for (std::size_t k = 0; k < b.rows; ++k)
    order[k] = {*std::min_element(b.row(k), b.row(k) + b.columns), k};
  std::ranges::sort(order);
  std::vector<std::size_t> rows;
  for (const auto& [least, k] : order) rows.push_back(k);
  return rows;
}

}  // namespace

/// By tiles of columns, of so many rows of b that they stay in the nearest cache while all rows of
/// c pass. Where a(i, k) + the least of row k in the tile is no less than the greatest cell of c's
/// row there, row k cannot lower any; rows of small cells come first.
void min_plus(const TickMatrix& a, const TickMatrix& b, TickMatrix& c) {
  ORRERY_CHECK(a.columns == b.rows && c.rows == a.rows && c.columns == b.columns);
  constexpr std::size_t kColumns = 512, kPass = 16, kLook = 64;  // a multiple of kPass
  const std::vector<std::size_t> order = by_least(b);
  TickMatrix from(a.rows, a.columns, 0);  // a in that order
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t k = 0; k < order.size(); ++k) from.row(i)[k] = a.row(i)[order[k]];
  std::vector<Ticks> worst(c.rows), least(order.size());
  for (std::size_t left = 0; left < c.columns; left += kColumns) {
    const std::size_t columns = std::min(kColumns, c.columns - left);
    for (std::size_t k = 0; k < order.size(); ++k) {
      const Ticks* row = b.row(order[k]) + left;
      least[k] = *std::min_element(row, row + columns);
    }
    for (std::size_t first = 0; first < order.size(); first += kPass) {
      const std::size_t end = std::min(first + kPass, order.size());
      for (std::size_t i = 0; i < c.rows; ++i) {
        Ticks* row = c.row(i) + left;
        if (first % kLook == 0) worst[i] = greatest(row, columns);
        Rows rows{};
        std::array<Ticks, kTogether> add{};
        std::size_t waiting = 0;
        const Ticks* at = from.row(i);
        for (std::size_t k = first; k < end; ++k) {
          if (at[k] + least[k] >= worst[i]) continue;
          rows[waiting] = b.row(order[k]) + left;
          add[waiting] = at[k];
          if (++waiting < kTogether) continue;
          lower(row, rows, add, columns);
          waiting = 0;
        }
        if (waiting == 0) continue;
        for (std::size_t spare = waiting; spare < kTogether; ++spare) {
          rows[spare] = rows[0];
          add[spare] = add[0];
        }
        lower(row, rows, add, columns);
      }
    }
  }
}

ORRERY_WIDE void add_ticks(const MoveTicks& terms, std::span<const std::int32_t> in_hosts,
                           std::span<const std::int32_t> across, std::span<Ticks> ticks) {
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const double near = real(in_hosts[i]), far = real(across[i]);
    const double sum = terms.in_host_part * near + terms.across_part * far +
                       (near > 0 ? terms.in_host_latency : 0.0) +
                       (far > 0 ? terms.across_latency : 0.0) + (near + far > 0 ? 1.0 : 0.0);
    ticks[i] += static_cast<Ticks>(std::min(sum, static_cast<double>(kNever)));
  }
}

void add_transposed(const TickMatrix& b, TickMatrix& a) {
  constexpr std::size_t kBlock = 16;  // columns that stay in the cache while rows pass
  for (std::size_t first = 0; first < a.columns; first += kBlock)
    for (std::size_t r = 0; r < a.rows; ++r)
      for (std::size_t c = first; c < std::min(first + kBlock, a.columns); ++c)
        a.row(r)[c] = std::min(a.row(r)[c] + b.row(c)[r], kNever);
}

}  // namespace orrery::search
