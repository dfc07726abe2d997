#pragma once
/// Maximum flow between two vertices of a directed graph, in whole bytes per second (Boost's
/// push-relabel).

#include <cstdint>
#include <vector>

namespace orrery::topologies {

struct Arc {
  uint32_t from = 0;
  uint32_t to = 0;
  int64_t capacity = 0;
};

/// @pre the sum of all capacities out of `source` fits int64.
int64_t max_flow(uint32_t vertices, const std::vector<Arc>& arcs, uint32_t source, uint32_t target);

}  // namespace orrery::topologies
