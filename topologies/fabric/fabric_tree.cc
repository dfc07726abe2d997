#include "topologies/fabric/fabric_tree.h"

#include <fmt/format.h>

#include <algorithm>

namespace orrery::topologies {

std::vector<std::string> faults_of_tree(std::span<const TreeSwitch> switches) {
  std::vector<std::string> faults, roots;
  for (const TreeSwitch& s : switches) {
    if (s.parent == kNoSwitch) {
      roots.push_back(s.name);
    } else if (s.uplink_bytes_per_second == 0) {
      faults.push_back(fmt::format("switch '{}' has no uplink_bandwidth_per_direction", s.name));
    }
  }
  if (roots.size() > 1)
    faults.push_back(fmt::format("{} switches hang on no other ('{}', '{}'): a tree has one root",
                                 roots.size(), roots[0], roots[1]));
  for (const TreeSwitch& s : switches) {
    uint32_t steps = 0;
    for (uint32_t up = s.parent; up != kNoSwitch && steps <= kMaxTreeHeight;
         up = switches[up].parent)
      ++steps;
    if (steps <= kMaxTreeHeight) continue;
    faults.push_back(fmt::format("switch '{}' is above itself, or under more than {} others",
                                 s.name, kMaxTreeHeight));
    break;
  }
  return faults;
}

std::vector<uint32_t> heights_of_tree(std::span<const TreeSwitch> switches) {
  std::vector<uint32_t> heights(switches.size(), 0);
  for (size_t s = 0; s < switches.size(); ++s) {
    uint32_t height = 0;
    for (uint32_t up = switches[s].parent; up != kNoSwitch; up = switches[up].parent)
      heights[up] = std::max(heights[up], ++height);
  }
  return heights;
}

}  // namespace orrery::topologies
