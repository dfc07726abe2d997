#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace orrery::search {

/// Those that no other beats, in their order; of those that beat each other the first.
template <class T, class Beats>
std::vector<T> unbeaten(const std::vector<T>& all, const Beats& beats) {
  std::vector<T> kept;
  for (std::size_t i = 0; i < all.size(); ++i) {
    bool beaten = false;
    for (std::size_t j = 0; j < all.size() && !beaten; ++j)
      beaten = j != i && beats(all[j], all[i]) && (j < i || !beats(all[i], all[j]));
    if (!beaten) kept.push_back(all[i]);
  }
  return kept;
}

/// One of a group, and what it costs in every respect.
struct Point {
  int group = 0;
  std::vector<std::int64_t> costs;
};
/// Numbers of those that no other of their group dominates, by costing no more in any respect: the
/// groups' Pareto fronts. Who dominates another stands before it where a group is sorted by costs,
/// and whoever is dominated is so by one of the front: each is compared with the front alone.
inline std::vector<std::size_t> unbeaten(const std::vector<Point>& all) {
  std::vector<std::size_t> order(all.size()), kept;
  for (std::size_t i = 0; i < all.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    const Point &x = all[a], &y = all[b];
    return x.group != y.group ? x.group < y.group : x.costs < y.costs;
  });
  std::size_t first_group = 0;  // of `kept`
  for (const std::size_t i : order) {
    if (!kept.empty() && all[kept.back()].group != all[i].group) first_group = kept.size();
    const auto beats = [&](std::size_t j) {
      return std::ranges::equal(all[j].costs, all[i].costs, std::ranges::less_equal{});
    };
    if (std::ranges::none_of(std::span(kept).subspan(first_group), beats)) kept.push_back(i);
  }
  std::ranges::sort(kept);
  return kept;
}

}  // namespace orrery::search
