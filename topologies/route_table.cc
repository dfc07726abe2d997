#include "topologies/route_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/sim_time.h"

namespace orrery::topologies {

namespace {

/// Ids of the slice: its hosts' blocks, then the fabric's vertices (the fabric owns no links).
uint32_t sliced_vertex(uint32_t vertex, const HostCopies& copies, uint32_t hosts, uint32_t slice_hosts) {
  const uint32_t fabric_begin = hosts * copies.vertices_per_host;
  return vertex < fabric_begin ? vertex : vertex - fabric_begin + slice_hosts * copies.vertices_per_host;
}

RouteSolver make_solver(std::span<const Vertex> vertices, std::span<const Link> links, const HostCopies& copies,
                        uint32_t hosts, uint32_t slice_hosts) {
  const bool sliced = copies.vertices_per_host > 0;
  std::vector<bool> forwards;
  const size_t block = sliced ? size_t{slice_hosts} * copies.vertices_per_host : vertices.size();
  const size_t fabric_begin = sliced ? size_t{hosts} * copies.vertices_per_host : vertices.size();
  for (size_t v = 0; v < block; ++v) forwards.push_back(vertices[v].kind != VertexKind::kDevice);
  for (size_t v = fabric_begin; v < vertices.size(); ++v) forwards.push_back(vertices[v].kind != VertexKind::kDevice);

  std::vector<RouteLink> flat;
  const size_t link_count = sliced ? size_t{slice_hosts} * copies.links_per_host : links.size();
  flat.reserve(link_count);
  for (const Link& link : links.first(link_count)) {
    const auto id = [&](VertexId v) { return sliced ? sliced_vertex(v.raw(), copies, hosts, slice_hosts) : v.raw(); };
    flat.push_back({id(link.from), id(link.to), link.bytes_per_second, base::ceil_ps(link.latency)});
  }
  return RouteSolver(std::move(forwards), std::move(flat));
}

std::vector<uint32_t> devices_of(std::span<const Vertex> vertices) {
  std::vector<uint32_t> devices;
  for (size_t v = 0; v < vertices.size(); ++v) {
    if (vertices[v].kind == VertexKind::kDevice) devices.push_back(static_cast<uint32_t>(v));
  }
  return devices;
}

}  // namespace

RouteTable::RouteTable(std::span<const Vertex> vertices, std::span<const Link> links,
                       const std::optional<HostCopies>& copies, uint32_t hosts)
    : copies_(copies.value_or(HostCopies{})),
      hosts_(hosts),
      slice_hosts_(std::min(hosts, 2u)),
      devices_(devices_of(copies ? vertices.first(size_t{slice_hosts_} * copies_.vertices_per_host) : vertices)),
      solver_(make_solver(vertices, links, copies_, hosts_, slice_hosts_)) {}

RouteTable::Slice RouteTable::slice(VertexId from, VertexId to) const {
  Slice s{from.raw(), to.raw(), {}};
  const uint32_t block = copies_.vertices_per_host;
  if (block == 0) return s;
  uint32_t used = 0;
  const auto place = [&](uint32_t vertex) {
    const uint32_t host = vertex / block;
    if (host >= hosts_) return sliced_vertex(vertex, copies_, hosts_, slice_hosts_);
    if (used == 0 || s.hosts[used - 1] != host) s.hosts[used++] = host;
    return (used - 1) * block + vertex % block;
  };
  s.from = place(from.raw());
  s.to = place(to.raw());
  return s;
}

const std::vector<PathCost>& RouteTable::costs_from(uint32_t source) const {
  {
    const std::lock_guard lock(costs_mutex_);
    if (const auto it = costs_.find(source); it != costs_.end()) return *it->second;
  }
  // Solved outside the lock: two threads may do it twice, and get the same.
  auto costs = std::make_unique<const std::vector<PathCost>>(solver_.costs_from(source));
  const std::lock_guard lock(costs_mutex_);
  return *costs_.try_emplace(source, std::move(costs)).first->second;
}

std::vector<LinkId> RouteTable::solve(VertexId from, VertexId to) const {
  const Slice s = slice(from, to);
  std::vector<LinkId> path;
  for (const uint32_t id : solver_.route(s.from, s.to, costs_from(s.from))) {
    if (copies_.links_per_host == 0) {
      path.emplace_back(id);
    } else {
      const uint32_t host = s.hosts[id / copies_.links_per_host];
      path.emplace_back(host * copies_.links_per_host + id % copies_.links_per_host);
    }
  }
  return path;
}

std::span<const LinkId> RouteTable::find(VertexId from, VertexId to) const {
  if (from == to) return {};
  const uint64_t key = uint64_t{from.raw()} << 32 | to.raw();
  Shard& shard = shards_[(from.raw() * 31 + to.raw()) % kShards];
  {
    const std::shared_lock lock(shard.mutex);
    if (const auto it = shard.routes.find(key); it != shard.routes.end()) return it->second;
  }
  std::vector<LinkId> path = solve(from, to);
  const std::unique_lock lock(shard.mutex);
  return shard.routes.try_emplace(key, std::move(path)).first->second;
}

std::optional<std::pair<VertexId, VertexId>> RouteTable::unreachable_devices() const {
  const auto pair = solver_.unreachable_pair(devices_);
  if (!pair) return std::nullopt;
  // The slice's hosts are the topology's first two, so host vertices keep their ids.
  return std::pair{VertexId(pair->first), VertexId(pair->second)};
}

}  // namespace orrery::topologies
