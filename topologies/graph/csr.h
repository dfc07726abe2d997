#pragma once

#include <cstdint>
#include <vector>

namespace orrery::topologies {

/// Groups the items 0..count-1 by key(item) < groups (counting sort, so ascending within a group):
/// the items of group g are items[offsets[g]] .. items[offsets[g + 1] - 1].
template <typename Key, typename Item>
void group_by(uint32_t count, uint32_t groups, const Key& key, std::vector<uint32_t>& offsets,
              std::vector<Item>& items) {
  offsets.assign(static_cast<size_t>(groups) + 1, 0);
  for (uint32_t i = 0; i < count; ++i) ++offsets[key(i) + 1];
  for (uint32_t g = 0; g < groups; ++g) offsets[g + 1] += offsets[g];
  std::vector<uint32_t> next(offsets.begin(), offsets.end() - 1);
  items.resize(count);
  for (uint32_t i = 0; i < count; ++i) items[next[key(i)]++] = Item(i);
}

}  // namespace orrery::topologies
