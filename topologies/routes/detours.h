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
#include "topologies/routes/route_solver.h"

namespace orrery::topologies {

/// Immutable; safe to read from many threads.
class Detours {
 public:
  /// A link has failed when it carries 0 bytes per second. `hosts_apart`: hosts are joined by the
  /// fabric only, as in a generated cluster. Keeps nothing of its arguments. O(vertices + links).
  Detours(std::span<const Vertex> vertices, std::span<const Link> links, bool hosts_apart);

  [[nodiscard]] bool failed(LinkId link) const { return links_[link.raw()].bytes_per_second == 0; }
  /// Empty when no path is left. O(E log V) of the two hosts and the fabric.
  [[nodiscard]] std::vector<LinkId> find(VertexId from, VertexId to) const;
  /// Two of these devices without a path from the first to the second.
  [[nodiscard]] std::optional<std::pair<VertexId, VertexId>> cut_off(
      std::span<const VertexId> devices) const;

 private:
  enum class Direction { kForward, kBackward };
  /// What a device reaches, or what reaches it: vertices of its region, and switches of the fabric
  /// at the end of the host's cables.
  struct Reach {
    std::vector<std::uint32_t> inside, switches;  // ascending
  };
  [[nodiscard]] Reach reach(std::uint32_t device, Direction direction) const;
  [[nodiscard]] std::vector<bool> through_fabric(const std::vector<std::uint32_t>& switches) const;
  template <typename Visit>
  void each_next(std::uint32_t vertex, Direction direction, const Visit& visit) const;

  // [vertex] kNoHost for the fabric; all alike in a builder's own graph
  std::vector<std::uint32_t> host_;
  std::vector<bool> forwards_;  // [vertex]
  std::vector<RouteLink> links_;
  // CSR by vertex, failed links too
  std::vector<std::uint32_t> out_offsets_, out_links_, in_offsets_, in_links_;
  // CSR by host, the fabric last
  std::vector<std::uint32_t> region_offsets_, region_vertices_;
};

}  // namespace orrery::topologies
