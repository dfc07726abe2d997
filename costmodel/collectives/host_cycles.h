#pragma once
/// \file
/// Orders in which the members of a host pass data on, where devices are linked to each other.
#include <cstddef>
#include <span>
#include <vector>

#include "topologies/topology.h"

namespace orrery::costmodel {

using Places = std::vector<std::size_t>;  // of the members of a host

/// Link-disjoint Hamiltonian cycles through directly linked members, found greedily; none where
/// they meet at a switch. A link of several times the least rate is in several cycles.
std::vector<Places> host_cycles(const topologies::Topology& topology, std::span<const int> members);

}  // namespace orrery::costmodel
