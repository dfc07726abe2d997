#include "topologies/routes/route_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::topologies {

RouteTable::RouteTable(std::span<const Vertex> vertices, std::span<const Link> links,
                       std::shared_ptr<const ClusterShape> cluster)
    : cluster_(std::move(cluster)) {
  if (!cluster_) {
    regions_.push_back(std::make_unique<RouteRegion>(vertices, links, 0));
    return;
  }
  for (const HostRun& run : cluster_->runs) {
    regions_.push_back(std::make_unique<RouteRegion>(
        vertices.subspan(run.first_vertex, run.vertices),
        links.subspan(run.first_link, run.own_links), run.first_vertex));
  }
}

RouteTable::RouteTable(std::shared_ptr<const RouteTable> whole, Detours detours)
    : whole_(std::move(whole)), detours_(std::move(detours)) {}

RouteTable::Place RouteTable::place(VertexId vertex) const {
  const uint32_t id = vertex.raw();
  if (!cluster_) return {nullptr, regions_.front().get(), 0, id};
  if (id >= cluster_->fabric_vertex) return {nullptr, nullptr, 0, id - cluster_->fabric_vertex};
  const auto& runs = cluster_->runs;
  const HostRun& run = *(std::ranges::upper_bound(runs, id, {}, &HostRun::first_vertex) - 1);
  const uint32_t offset = id - run.first_vertex;
  return {&run, regions_[as_index(&run - runs.data())].get(),
          run.first_host + offset / run.vertices, offset % run.vertices};
}

/// Of its host, or of the whole graph.
uint32_t RouteTable::first_link(const Place& p) {
  return p.run == nullptr ? 0 : p.run->first_link + (p.host - p.run->first_host) * p.run->links;
}

/// Vertex, its card, the fabric, the other's card, the other. False when one of them reaches no
/// card.
bool RouteTable::through_fabric(const Place& from, const Place& to, Path& path) const {
  if (!cluster_ || !cluster_->fabric) return false;
  const auto leaf = [&](const Place& p, uint32_t nic) {
    return cluster_->fabric->switch_of_nic()[p.run->nic(p.host, nic)];
  };
  const auto append = [&](uint32_t first, const std::vector<uint32_t>& links) {
    for (const uint32_t link : links) path.emplace_back(first + link);
  };
  uint32_t out = from.local, in = to.local;  // switches
  if (from.run != nullptr) {
    const std::optional<Way>& way = from.region->way_out(from.local);
    if (!way) return false;
    append(first_link(from), way->links);
    path.emplace_back(from.run->cable_up(from.host, way->nic));
    out = leaf(from, way->nic);
  }
  const std::optional<Way>* last = to.run == nullptr ? nullptr : &to.region->way_in(to.local);
  if (last != nullptr) {
    if (!*last) return false;
    in = leaf(to, (*last)->nic);
  }
  const auto id = [](const Place& p) { return uint64_t{p.host} << 32 | p.local; };
  thread_local std::vector<uint32_t> hops;
  hops.clear();
  cluster_->fabric->route(out, in, stable_hash(id(from), id(to)), hops);
  append(cluster_->fabric_link, hops);
  if (last != nullptr) {
    path.emplace_back(to.run->cable_up(to.host, (*last)->nic) + 1);
    append(first_link(to), (*last)->links);
  }
  return true;
}

RouteTable::Path RouteTable::solve(VertexId from_vertex, VertexId to_vertex) const {
  Path path;
  if (detours_) {
    path = whole_->solve(from_vertex, to_vertex);
    if (std::ranges::none_of(path, [&](LinkId link) { return detours_->failed(link); }))
      return path;
    return detours_->find(from_vertex, to_vertex);
  }
  const Place from = place(from_vertex), to = place(to_vertex);
  if (from.region != nullptr && from.run == to.run && from.host == to.host) {
    for (const uint32_t link : from.region->route(from.local, to.local))
      path.emplace_back(first_link(from) + link);
    if (!path.empty() || from_vertex == to_vertex) return path;
  }
  if (!through_fabric(from, to, path)) path.clear();
  return path;
}

bool RouteTable::detoured(VertexId from, VertexId to) const {
  if (!detours_) return false;
  const std::span<const LinkId> route = whole_->find(from, to);
  return std::ranges::any_of(route, [&](LinkId link) { return detours_->failed(link); });
}

std::span<const LinkId> RouteTable::find(VertexId from, VertexId to) const {
  if (from == to) return {};
  const uint64_t key = uint64_t{from.raw()} << 32 | to.raw();
  Shard& shard = shards_[(from.raw() * 31 + to.raw()) % kShards];
  {
    const std::shared_lock lock(shard.mutex);
    if (const auto it = shard.routes.find(key); it != shard.routes.end()) return it->second;
  }
  Path path = solve(from, to);
  const std::unique_lock lock(shard.mutex);
  return shard.routes.try_emplace(key, std::move(path)).first->second;
}

void RouteTable::append(VertexId from_vertex, VertexId to_vertex, std::vector<LinkId>& path) const {
  if (cluster_ && !detours_) {
    const Place from = place(from_vertex), to = place(to_vertex);
    if (from.run == nullptr || from.run != to.run || from.host != to.host) {
      if (const size_t before = path.size(); !through_fabric(from, to, path)) path.resize(before);
      return;
    }
    // as in the first host of the run
    const auto first = [&](const Place& p) { return VertexId(p.run->first_vertex + p.local); };
    const uint32_t links = first_link(from) - from.run->first_link;
    for (const LinkId link : find(first(from), first(to))) path.emplace_back(link.raw() + links);
    return;
  }
  const std::span<const LinkId> known = find(from_vertex, to_vertex);
  path.insert(path.end(), known.begin(), known.end());
}

std::optional<std::pair<VertexId, VertexId>> RouteTable::unreachable_devices() const {
  if (!cluster_) {
    const auto pair = regions_.front()->unreachable_devices();
    return pair ? std::optional(std::pair{VertexId(pair->first), VertexId(pair->second)})
                : std::nullopt;
  }
  for (size_t r = 0; r < regions_.size(); ++r) {
    const HostRun& run = cluster_->runs[r];
    const RouteRegion& region = *regions_[r];
    if (const auto pair = region.unreachable_devices()) {
      const bool joined =
          cluster_->fabric && region.way_out(pair->first) && region.way_in(pair->second);
      if (!joined)
        return std::pair{VertexId(run.first_vertex + pair->first),
                         VertexId(run.first_vertex + pair->second)};
    }
    if (cluster_->hosts == 1) continue;
    // To a device of another host: each needs a card, both ways.
    const uint32_t other = run.hosts > 1 ? run.first_vertex + run.vertices
                                         : cluster_->runs[r == 0 ? 1 : 0].first_vertex;
    for (const uint32_t device : region.devices()) {
      if (region.way_out(device) && region.way_in(device)) continue;
      const RouteRegion& there = run.hosts > 1 ? region : *regions_[r == 0 ? 1 : 0];
      return std::pair{VertexId(run.first_vertex + device),
                       VertexId(other + there.devices().front())};
    }
  }
  return std::nullopt;
}

}  // namespace orrery::topologies
