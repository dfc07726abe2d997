#include "search/partition/tick_matrix.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "plan/partition/clones.h"

namespace orrery::search {
namespace {

constexpr std::size_t kTogether = 4;  // rows of b that one pass over a row of c reads

using Rows = std::array<const Ticks*, kTogether>;

ORRERY_CLONES("avx512f", "avx2")
void lower(Ticks* c, const Rows& b, const std::array<Ticks, kTogether>& a, std::size_t columns) {
  const Ticks *b0 = b[0], *b1 = b[1], *b2 = b[2], *b3 = b[3];
  for (std::size_t j = 0; j < columns; ++j) {
    const Ticks left = std::min(a[0] + b0[j], a[1] + b1[j]);
    const Ticks right = std::min(a[2] + b2[j], a[3] + b3[j]);
    c[j] = std::min(c[j], std::min(left, right));
  }
}

ORRERY_CLONES("avx512f", "avx2") Ticks greatest(const Ticks* row, std::size_t columns) {
  Ticks most = 0;
  for (std::size_t j = 0; j < columns; ++j) most = std::max(most, row[j]);
  return most;
}

/// Numbers 0 .. n - 1 in ascending order of a key.
std::vector<std::size_t> ascending(const std::vector<Ticks>& key) {
  std::vector<std::size_t> order(key.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return key[i]; });
  return order;
}

std::vector<Ticks> least_of_rows(const TickMatrix& m) {
  std::vector<Ticks> least;
  for (std::size_t r = 0; r < m.rows; ++r)
    least.push_back(*std::min_element(m.row(r), m.row(r) + m.columns));
  return least;
}
std::vector<Ticks> least_of_columns(const TickMatrix& m) {
  std::vector<Ticks> least(m.columns, kNever);
  for (std::size_t r = 0; r < m.rows; ++r)
    for (std::size_t c = 0; c < m.columns; ++c) least[c] = std::min(least[c], m.row(r)[c]);
  return least;
}

TickMatrix with_columns(const TickMatrix& m, const std::vector<std::size_t>& columns) {
  TickMatrix to(m.rows, m.columns, 0);
  for (std::size_t r = 0; r < m.rows; ++r)
    for (std::size_t c = 0; c < m.columns; ++c) to.row(r)[c] = m.row(r)[columns[c]];
  return to;
}
TickMatrix with_rows(const TickMatrix& m, const std::vector<std::size_t>& rows) {
  TickMatrix to(m.rows, m.columns, 0);
  for (std::size_t r = 0; r < m.rows; ++r) std::copy_n(m.row(rows[r]), m.columns, to.row(r));
  return to;
}

}  // namespace

/// By tiles of columns, of so many rows of b that they stay in the nearest cache while all rows of
/// c pass. Where a(i, k) + the least of row k in the tile is no less than the greatest cell of c's
/// row there, row k cannot lower any. So rows of small cells come first, and columns that nothing
/// reaches cheaply stand together.
TickMatrix min_plus(const TickMatrix& a, const TickMatrix& unordered) {
  ORRERY_CHECK(a.columns == unordered.rows);
  constexpr std::size_t kColumns = 512, kPass = 16, kLook = 64;  // a multiple of kPass
  const std::vector<std::size_t> inner = ascending(least_of_rows(unordered)),
                                 outer = ascending(least_of_columns(unordered));
  const TickMatrix from = with_columns(a, inner),
                   b = with_columns(with_rows(unordered, inner), outer);
  TickMatrix c(a.rows, b.columns, kNever);
  std::vector<Ticks> worst(c.rows), least(b.rows);
  for (std::size_t left = 0; left < c.columns; left += kColumns) {
    const std::size_t columns = std::min(kColumns, c.columns - left);
    for (std::size_t k = 0; k < b.rows; ++k)
      least[k] = *std::min_element(b.row(k) + left, b.row(k) + left + columns);
    for (std::size_t first = 0; first < b.rows; first += kPass) {
      const std::size_t end = std::min(first + kPass, b.rows);
      for (std::size_t i = 0; i < c.rows; ++i) {
        Ticks* row = c.row(i) + left;
        if (first % kLook == 0) worst[i] = greatest(row, columns);
        Rows waiting{};
        std::array<Ticks, kTogether> add{};
        std::size_t count = 0;
        const Ticks* at = from.row(i);
        for (std::size_t k = first; k < end; ++k) {
          if (at[k] + least[k] >= worst[i]) continue;
          waiting[count] = b.row(k) + left;
          add[count] = at[k];
          if (++count < kTogether) continue;
          lower(row, waiting, add, columns);
          count = 0;
        }
        if (count == 0) continue;
        std::fill(waiting.begin() + count, waiting.end(), waiting[0]);
        std::fill(add.begin() + count, add.end(), add[0]);
        lower(row, waiting, add, columns);
      }
    }
  }
  std::vector<std::size_t> back(outer.size());
  for (std::size_t j = 0; j < outer.size(); ++j) back[outer[j]] = j;
  return with_columns(c, back);
}

ORRERY_CLONES("avx512f", "avx2")
void add_ticks(const MoveTicks& terms, std::span<const std::int32_t> in_hosts,
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
