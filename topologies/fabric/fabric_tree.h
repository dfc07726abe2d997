#pragma once
/// What a list of switches must be to be a tree.

#include <span>
#include <string>
#include <vector>

#include "topologies/fabric/fabric.h"

namespace orrery::topologies {

inline constexpr uint32_t kMaxTreeHeight = 64;

/// Every reason why the switches are no tree: several roots or none, a circle, too many levels, a
/// switch without an uplink's capacity.
std::vector<std::string> faults_of_tree(std::span<const TreeSwitch> switches);

/// Links between a switch and the farthest switch below it. @pre a tree.
std::vector<uint32_t> heights_of_tree(std::span<const TreeSwitch> switches);

}  // namespace orrery::topologies
