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

/// One of a class, and what it takes of every good.
struct Taker {
  int of_class = 0;
  std::vector<std::int64_t> takes;
};
/// Numbers of those that no other of their class beats, by taking no more of anything. Who beats
/// another stands before it where classes are sorted by what they take, and whoever is beaten is
/// beaten by one that is kept: each is compared with the kept ones of its class.
inline std::vector<std::size_t> unbeaten(const std::vector<Taker>& all) {
  std::vector<std::size_t> order(all.size()), kept;
  for (std::size_t i = 0; i < all.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    const Taker &x = all[a], &y = all[b];
    return x.of_class != y.of_class ? x.of_class < y.of_class : x.takes < y.takes;
  });
  std::size_t first_of_class = 0;  // of `kept`
  for (const std::size_t i : order) {
    if (!kept.empty() && all[kept.back()].of_class != all[i].of_class) first_of_class = kept.size();
    const auto beats = [&](std::size_t j) {
      return std::ranges::equal(all[j].takes, all[i].takes, std::ranges::less_equal{});
    };
    if (std::ranges::none_of(std::span(kept).subspan(first_of_class), beats)) kept.push_back(i);
  }
  std::ranges::sort(kept);
  return kept;
}

}  // namespace orrery::search
