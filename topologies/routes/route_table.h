#pragma once
/// Routes of one topology by the rule of topology.h, solved when first asked for and kept.
///
/// A generated cluster is solved host by host: one region per run of equal hosts, the fabric by its
/// own formula, and the pieces put together. A builder's own graph is one region.

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "topologies/fabric/cluster.h"
#include "topologies/graph/elements.h"
#include "topologies/routes/detours.h"
#include "topologies/routes/route_region.h"

namespace orrery::topologies {

/// Thread-safe: one lock per shard of pairs, shared while a cached route is looked up.
class RouteTable {
 public:
  /// Keeps `cluster` (null for a builder's own graph), nothing else of its arguments.
  RouteTable(std::span<const Vertex> vertices, std::span<const Link> links,
             std::shared_ptr<const ClusterShape> cluster);
  /// The routes of `whole` but where they cross a failed link.
  RouteTable(std::shared_ptr<const RouteTable> whole, Detours detours);

  /// Route between two vertices of the topology; empty when equal or unreachable. The span lives as
  /// long as the table.
  std::span<const LinkId> find(VertexId from, VertexId to) const;
  /// Appends the same; between hosts without keeping it, which costs less than to look it up.
  void append(VertexId from, VertexId to, std::vector<LinkId>& path) const;

  /// A pair of devices without a route, if there is one.
  std::optional<std::pair<VertexId, VertexId>> unreachable_devices() const;
  /// Whether the route without failures crosses a failed link.
  bool detoured(VertexId from, VertexId to) const;
  /// Around failed links; null where none failed.
  const Detours* detours() const { return detours_ ? &*detours_ : nullptr; }

 private:
  /// A vertex of a host, or of the fabric (`run` null, `local` the switch).
  struct Place {
    const HostRun* run = nullptr;
    const RouteRegion* region = nullptr;
    uint32_t host = 0;
    uint32_t local = 0;
  };
  using Path = std::vector<LinkId>;
  Place place(VertexId vertex) const;
  static uint32_t first_link(const Place& p);
  bool through_fabric(const Place& from, const Place& to, Path& path) const;
  Path solve(VertexId from, VertexId to) const;

  struct Shard {
    std::shared_mutex mutex;
    // by from << 32 | to; nodes do not move
    std::unordered_map<uint64_t, std::vector<LinkId>> routes;
  };
  static constexpr size_t kShards = 16;

  std::shared_ptr<const ClusterShape> cluster_;
  std::vector<std::unique_ptr<RouteRegion>> regions_;  // [run], or the one of the whole graph
  std::shared_ptr<const RouteTable> whole_;            // with detours: the routes without failures
  std::optional<Detours> detours_;
  mutable std::array<Shard, kShards> shards_;
};

}  // namespace orrery::topologies
