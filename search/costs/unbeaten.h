#pragma once
#include <cstddef>
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

}  // namespace orrery::search
