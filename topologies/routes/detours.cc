#include "topologies/routes/detours.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "base/numbers.h"

namespace orrery::topologies {

Detours::Detours(std::span<const Vertex> vertices, std::span<const Link> links, bool hosts_apart)
    : flat_(vertices, links) {
  std::uint32_t hosts = 0;
  for (const Vertex& v : vertices) {
    host_.push_back(hosts_apart ? v.host : 0);
    if (v.host != kNoHost) hosts = std::max(hosts, v.host + 1);
  }
  regions_ =
      group_by(flat_.size(), hosts + 1, [&](std::uint32_t v) { return std::min(host_[v], hosts); });
}

template <typename Visit>
void Detours::each_next(std::uint32_t vertex, Direction direction, const Visit& visit) const {
  for (const std::uint32_t id : flat_.beyond(direction).of(vertex)) {
    if (flat_.links[id].bytes_per_second > 0) visit(flat_.end(id, direction));
  }
}

std::vector<LinkId> Detours::find(VertexId from, VertexId to) const {
  const auto fabric = count_of(regions_.offsets) - 2;
  std::vector<std::uint32_t> regions{std::min(host_[from.raw()], fabric),
                                     std::min(host_[to.raw()], fabric), fabric};
  std::ranges::sort(regions);
  regions.erase(std::unique(regions.begin(), regions.end()), regions.end());
  std::vector<std::uint32_t> vertices;
  for (const std::uint32_t r : regions)
    std::ranges::copy(regions_.of(r), std::back_inserter(vertices));
  std::ranges::sort(vertices);
  const auto local = [&](std::uint32_t v) {
    return as_u32(std::ranges::lower_bound(vertices, v) - vertices.begin());
  };
  const auto inside = [&](std::uint32_t v) { return std::ranges::binary_search(vertices, v); };

  const std::uint64_t key = stable_hash(from.raw(), to.raw());
  // (hash, link): the solver prefers what comes first
  std::vector<std::pair<std::uint64_t, std::uint32_t>> order;
  for (const std::uint32_t v : vertices) {
    for (const std::uint32_t id : flat_.out.of(v)) {
      const RouteLink& link = flat_.links[id];
      if (link.bytes_per_second > 0 && inside(link.to))
        order.emplace_back(stable_hash(key, id), id);
    }
  }
  std::ranges::sort(order);
  std::vector<bool> forwards;
  for (const std::uint32_t v : vertices) forwards.push_back(flat_.forwards[v]);
  std::vector<RouteLink> links;
  for (const auto& [hash, id] : order) {
    const RouteLink& link = links.emplace_back(flat_.links[id]);
    links.back().from = local(link.from);
    links.back().to = local(link.to);
  }
  const RouteSolver solver(LinkGraph(std::move(forwards), std::move(links)));
  std::vector<LinkId> path;
  for (const std::uint32_t i :
       solver.route(local(from.raw()), local(to.raw()), solver.costs_from(local(from.raw()))))
    path.emplace_back(order[i].second);
  return path;
}

Detours::Reach Detours::reach(std::uint32_t device, Direction direction) const {
  Reach found;
  std::vector<std::uint32_t> queue{device};
  const auto add = [](std::vector<std::uint32_t>& list, std::uint32_t v) {
    const auto at = std::ranges::lower_bound(list, v);
    if (at != list.end() && *at == v) return false;
    list.insert(at, v);
    return true;
  };
  add(found.inside, device);
  for (std::size_t head = 0; head < queue.size(); ++head) {
    if (queue[head] != device && !flat_.forwards[queue[head]]) continue;
    each_next(queue[head], direction, [&](std::uint32_t next) {
      if (host_[next] != host_[device])
        add(found.switches, next);
      else if (add(found.inside, next))
        queue.push_back(next);
    });
  }
  return found;
}

std::vector<bool> Detours::through_fabric(const std::vector<std::uint32_t>& switches) const {
  std::vector<bool> reached(host_.size(), false);
  std::vector<std::uint32_t> queue = switches;
  for (const std::uint32_t s : switches) reached[s] = true;
  for (std::size_t head = 0; head < queue.size(); ++head) {
    each_next(queue[head], Direction::kForward, [&](std::uint32_t next) {
      if (host_[next] != kNoHost || reached[next]) return;
      reached[next] = true;
      queue.push_back(next);
    });
  }
  return reached;
}

/// Devices with the same way out to the fabric, or the same way in, are asked once.
std::optional<std::pair<VertexId, VertexId>> Detours::cut_off(
    std::span<const VertexId> devices) const {
  // switches -> devices
  using Ways = std::map<std::vector<std::uint32_t>, std::vector<std::uint32_t>>;
  Ways out, in;
  std::vector<Reach> reaches;
  for (const VertexId d : devices) {
    reaches.push_back(reach(d.raw(), Direction::kForward));
    const auto index = as_u32(reaches.size() - 1);
    out[reaches.back().switches].push_back(index);
    in[reach(d.raw(), Direction::kBackward).switches].push_back(index);
  }
  for (const auto& [exits, senders] : out) {
    const std::vector<bool> reached = through_fabric(exits);
    for (const auto& [entries, receivers] : in) {
      if (std::ranges::any_of(entries, [&](std::uint32_t s) { return reached[s]; })) continue;
      for (const std::uint32_t a : senders) {
        for (const std::uint32_t b : receivers) {
          if (a == b || std::ranges::binary_search(reaches[a].inside, devices[b].raw())) continue;
          return std::pair{devices[a], devices[b]};
        }
      }
    }
  }
  return std::nullopt;
}

}  // namespace orrery::topologies
