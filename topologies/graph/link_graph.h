#pragma once
/// Vertices and links with dense numbers of their own, for searches.

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "topologies/graph/elements.h"

namespace orrery::topologies {

using base::Csr, base::group_by;

struct RouteLink {
  uint32_t from = 0;
  uint32_t to = 0;
  int64_t bytes_per_second = 0;
  int64_t latency_ps = 0;
};

enum class Direction { kForward, kBackward };

struct LinkGraph {
  std::vector<bool> forwards;  ///< [vertex] false: may only begin or end a path (a device)
  std::vector<RouteLink> links;
  Csr out, in;  ///< by vertex, ascending ids

  LinkGraph(std::vector<bool> vertices, std::vector<RouteLink> joined);
  /// `links` join vertices of `vertices`, whose first has the id `first_vertex`.
  LinkGraph(std::span<const Vertex> vertices, std::span<const Link> joined,
            uint32_t first_vertex = 0);

  uint32_t size() const { return count_of(forwards); }
  const Csr& beyond(Direction direction) const {
    return direction == Direction::kForward ? out : in;
  }
  /// The end of a link that `direction` leads to.
  uint32_t end(uint32_t link, Direction direction) const {
    return direction == Direction::kForward ? links[link].to : links[link].from;
  }
};

}  // namespace orrery::topologies
