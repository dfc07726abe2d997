#include "search/partition/tick_matrix.h"

#include <algorithm>

#include "base/check.h"
#include "plan/partition/clones.h"

namespace orrery::search {
namespace {

/// c = min(c, a + b), cell by cell.
ORRERY_CLONES("avx512f", "avx2")
void lower(Ticks* c, Ticks a, const Ticks* b, std::size_t columns) {
  for (std::size_t j = 0; j < columns; ++j) c[j] = std::min(c[j], a + b[j]);
}

}  // namespace

TickMatrix min_plus(const TickMatrix& a, const TickMatrix& b) {
  ORRERY_CHECK(a.columns == b.rows);
  TickMatrix c(a.rows, b.columns, kNever);
  for (std::size_t i = 0; i < c.rows; ++i)
    for (std::size_t k = 0; k < b.rows; ++k)
      if (a.row(i)[k] < kNever) lower(c.row(i), a.row(i)[k], b.row(k), c.columns);
  return c;
}

}  // namespace orrery::search
