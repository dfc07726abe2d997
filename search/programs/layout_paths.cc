#include "search/programs/layout_paths.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::search {
namespace {
std::int64_t saturating(std::int64_t a, std::int64_t b) { return std::min(kForbidden, a + b); }
std::int64_t at(const std::vector<std::int64_t>& values, std::size_t i) {
  return values.empty() ? 0 : values[i];
}
}  // namespace

std::int64_t LayoutPaths::transition(int from, int to) const {
  return at(transition_, as_index(from * layouts_ + to));
}
std::int64_t LayoutPaths::entry(int layout) const { return at(entry_, as_index(layout)); }
std::int64_t LayoutPaths::exit(int layout) const { return at(exit_, as_index(layout)); }

LayoutPaths::LayoutPaths(const LayerProblem& problem)
    : layouts_(problem.layouts),
      transition_(problem.transition_ps),
      entry_(problem.entry_ps),
      exit_(problem.exit_ps) {
  ORRERY_CHECK(layouts_ >= 1 && layouts_ <= kMaxLayouts, "{} layouts", layouts_);
  if (exact()) {
    fill();
    return;
  }
  if (!entry_.empty()) least_entry_ = std::ranges::min(entry_);
  if (!exit_.empty()) least_exit_ = std::ranges::min(exit_);
  least_transition_ = kForbidden;
  for (int from = 0; from < layouts_; ++from) {
    for (int to = 0; to < layouts_; ++to) {
      if (from != to) least_transition_ = std::min(least_transition_, transition(from, to));
    }
  }
}

std::int64_t LayoutPaths::bounded(std::uint64_t set) const {
  if (std::has_single_bit(set))
    return saturating(entry(std::countr_zero(set)), exit(std::countr_zero(set)));
  return saturating(saturating(least_entry_, least_exit_),
                    saturating(0, least_transition_ * (std::popcount(set) - 1)));
}

std::int64_t LayoutPaths::bounded_superset(std::uint64_t set) const {
  const std::int64_t ends = saturating(least_entry_, least_exit_);
  if (set == 0) return ends;
  // Alone as it is, or with one more layout at least.
  const int others = std::max(std::popcount(set) - 1, 1);
  const std::int64_t more =
      least_transition_ >= kForbidden ? kForbidden : saturating(ends, least_transition_ * others);
  return std::min(bounded(set), more);
}

void LayoutPaths::fill() {
  const std::uint32_t sets = 1U << layouts_;
  const auto k = as_index(layouts_);
  std::vector<std::int64_t> ends(sets * k, kForbidden);  // h[C][l] at C * K + l
  cost_.assign(sets, kForbidden);
  cost_[0] = 0;
  for (std::uint32_t set = 1; set < sets; ++set) {
    for (std::size_t last = 0; last < k; ++last) {
      const std::uint32_t bit = 1U << last;
      if ((set & bit) == 0) continue;
      std::int64_t& best = ends[set * k + last];
      if (set == bit) best = at(entry_, last);
      for (std::size_t from = 0; from < k; ++from) {
        if (from == last || (set & (1U << from)) == 0) continue;
        const std::int64_t step = transition(as_int(from), as_int(last));
        best = std::min(best, saturating(ends[(set ^ bit) * k + from], step));
      }
      cost_[set] = std::min(cost_[set], saturating(best, at(exit_, last)));
    }
  }
  superset_ = cost_;
  superset_[0] = kForbidden;
  for (std::uint32_t set = 1; set < sets; ++set) superset_[0] = std::min(superset_[0], cost_[set]);
  for (std::uint32_t set = sets; set-- > 1;) {
    for (std::size_t l = 0; l < k; ++l)
      superset_[set] = std::min(superset_[set], superset_[set | (1U << l)]);
  }
}

}  // namespace orrery::search
