#pragma once
/// Routes inside one host, or inside a graph without hosts that repeat: RouteSolver with a memory.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "topologies/fabric/fabric.h"
#include "topologies/graph/elements.h"
#include "topologies/routes/route_solver.h"

namespace orrery::topologies {

/// From a vertex to the card that its traffic takes, or from that card to the vertex; see
/// topology.h.
struct Way {
  uint32_t nic = 0;             ///< index among the host's cards
  std::vector<uint32_t> links;  ///< between vertex and card
};

/// Thread-safe. Ids are those of the whole graph less the first of the region.
class RouteRegion {
 public:
  /// `links` join vertices of `vertices`, whose first has the id `first_vertex`. Keeps nothing of
  /// its arguments.
  RouteRegion(std::span<const Vertex> vertices, std::span<const Link> links, uint32_t first_vertex);

  std::vector<uint32_t> route(uint32_t from, uint32_t to) const {
    return solver_.route(from, to, costs_from(from));
  }
  std::span<const uint32_t> devices() const { return devices_; }
  /// A pair of devices without a route, if there is one.
  std::optional<std::pair<uint32_t, uint32_t>> unreachable_devices() const {
    return solver_.unreachable_pair(devices_);
  }

  /// Nothing when the vertex and the cards do not reach each other. A vertex's first answer is
  /// kept.
  const std::optional<Way>& way_out(uint32_t vertex) const { return way(vertex, true); }
  const std::optional<Way>& way_in(uint32_t vertex) const { return way(vertex, false); }

 private:
  const std::vector<PathCost>& costs_from(uint32_t source) const;
  const std::optional<Way>& way(uint32_t vertex, bool out) const;
  std::optional<Way> find_way(uint32_t vertex, bool out) const;

  std::vector<uint32_t> devices_, nics_;
  std::vector<uint32_t> ordinals_;  // [vertex] its number among the devices; 0 for other vertices
  RouteSolver solver_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<uint32_t, std::unique_ptr<const std::vector<PathCost>>> costs_;
  mutable std::vector<std::unique_ptr<const std::optional<Way>>> ways_;  // solved
  // [2 vertex + out], in ways_; null before
  mutable std::vector<std::atomic<const std::optional<Way>*>> way_;
};

}  // namespace orrery::topologies
