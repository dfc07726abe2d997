#include "plan/program/divisors.h"

#include <fmt/format.h>

#include <algorithm>

namespace orrery::plan {

std::string divisors(const std::vector<std::int64_t>& of) {
  const std::int64_t limit = *std::ranges::min_element(of);
  std::vector<std::int64_t> low, high;
  const auto divides_all = [&of](std::int64_t d) {
    return std::ranges::all_of(of, [d](std::int64_t n) { return n % d == 0; });
  };
  for (std::int64_t d = 1; d * d <= limit; ++d) {
    if (limit % d != 0) continue;
    if (divides_all(d)) low.push_back(d);
    if (d * d != limit && divides_all(limit / d)) high.push_back(limit / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  constexpr std::size_t kShown = 12;
  if (low.size() <= kShown) return fmt::format("{}", fmt::join(low, ", "));
  const std::vector<std::int64_t> first(low.begin(), low.begin() + kShown);
  return fmt::format("{}, ..., {}", fmt::join(first, ", "), low.back());
}

std::string nearest_divisors(std::int64_t n, std::int64_t value) {
  std::int64_t below = 0, above = 0;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    for (const std::int64_t c : {d, n / d}) {
      if (c <= value) below = std::max(below, c);
      if (c >= value) above = above == 0 ? c : std::min(above, c);
    }
  }
  if (below == 0 || above == 0) return fmt::format("{}", std::max(below, above));
  return fmt::format("{} or {}", below, above);
}

}  // namespace orrery::plan
