#pragma once
/// Routes of one topology, solved when first asked for and kept.
///
/// A cluster of equal hosts is solved on a slice of (at most) two of them and the fabric. A route from host g to host h
/// is the slice's route from its host 0 to its host 1 with the blocks of ids moved to g and h: the fabric is one
/// vertex, so no shortest path visits a third host, and ids keep their order within a block, so ties fall the same way.

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "topologies/route_solver.h"
#include "topologies/topology.h"

namespace orrery::topologies {

/// Thread-safe: one lock per shard of pairs, shared while a cached route is looked up.
class RouteTable {
 public:
  /// Keeps nothing of its arguments. `copies` as Topology::host_copies(), with `hosts` copies.
  RouteTable(std::span<const Vertex> vertices, std::span<const Link> links, const std::optional<HostCopies>& copies,
             uint32_t hosts);

  /// Route between two vertices of the topology; empty when equal or unreachable. The span lives as long as the table.
  std::span<const LinkId> find(VertexId from, VertexId to) const;

  /// A pair of devices without a route, if there is one.
  std::optional<std::pair<VertexId, VertexId>> unreachable_devices() const;

 private:
  /// The slice's stand-in for a pair of vertices, and the real hosts behind the slice's two.
  struct Slice {
    uint32_t from = 0;
    uint32_t to = 0;
    std::array<uint32_t, 2> hosts = {0, 1};
  };
  Slice slice(VertexId from, VertexId to) const;
  std::vector<LinkId> solve(VertexId from, VertexId to) const;
  const std::vector<PathCost>& costs_from(uint32_t source) const;

  struct Shard {
    std::shared_mutex mutex;
    std::unordered_map<uint64_t, std::vector<LinkId>> routes;  // by from << 32 | to; nodes do not move
  };
  static constexpr size_t kShards = 16;

  HostCopies copies_;              // all zero when hosts are not copies
  uint32_t hosts_ = 0;             // of the topology
  uint32_t slice_hosts_ = 0;       // in the solver's graph
  std::vector<uint32_t> devices_;  // of the solver's graph
  RouteSolver solver_;
  mutable std::mutex costs_mutex_;
  mutable std::unordered_map<uint32_t, std::unique_ptr<const std::vector<PathCost>>> costs_;
  mutable std::array<Shard, kShards> shards_;
};

}  // namespace orrery::topologies
