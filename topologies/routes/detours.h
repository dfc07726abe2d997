#pragma once
/// Routes around failed links.
///
/// The detour of a pair is the best path by the rule of topology.h (hops, latency, bottleneck)
/// through the vertices of the two hosts and of the fabric, without the failed links; in a
/// builder's own graph through all vertices. Devices do not forward, and no host forwards for
/// others. Of paths that tie, the least in order of hash(pair, link) is taken, as ECMP spreads what
/// a failed link carried over those that are left.

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "topologies/graph/elements.h"
#include "topologies/graph/link_graph.h"
#include "topologies/routes/route_solver.h"

namespace orrery::topologies {

/// Immutable; safe to read from many threads.
class Detours {
 public:
  /// A link has failed when it carries 0 bytes per second. `hosts_apart`: hosts are joined by the
  /// fabric only, as in a generated cluster. Keeps nothing of its arguments. O(vertices + links).
  Detours(std::span<const Vertex> vertices, std::span<const Link> links, bool hosts_apart);

  bool failed(LinkId link) const { return flat_.links[link.raw()].bytes_per_second == 0; }
  /// Empty when no path is left. O(E log V) of the two hosts and the fabric.
  std::vector<LinkId> find(VertexId from, VertexId to) const;
  /// Two of these devices without a path from the first to the second.
  std::optional<std::pair<VertexId, VertexId>> cut_off(std::span<const VertexId> devices) const;

 private:
  /// What a device reaches, or what reaches it: vertices of its region, and switches of the fabric
  /// at the end of the host's cables.
  struct Reach {
    std::vector<std::uint32_t> inside, switches;  // ascending
  };
  Reach reach(std::uint32_t device, Direction direction) const;
  std::vector<bool> through_fabric(const std::vector<std::uint32_t>& switches) const;
  template <typename Visit>
  void each_next(std::uint32_t vertex, Direction direction, const Visit& visit) const;

  // [vertex] kNoHost for the fabric; all alike in a builder's own graph
  std::vector<std::uint32_t> host_;
  LinkGraph flat_;  // failed links too
  Csr regions_;     // vertices by host, the fabric last
};

}  // namespace orrery::topologies
