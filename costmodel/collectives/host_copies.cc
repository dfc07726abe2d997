#include "costmodel/collectives/host_copies.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "base/numbers.h"
#include "base/sim_time.h"

namespace orrery::costmodel {
namespace {

using topologies::LinkId;
using topologies::Topology;
using topologies::VertexId;
using Path = std::vector<LinkId>;

std::int64_t latency_ps(const Topology& topology, const Path& path) {
  std::int64_t sum = 0;
  for (const LinkId l : path) sum += base::ceil_ps(topology.link(l).latency);
  return sum;
}

/// Of `flows` on each link, the share of one.
std::int64_t rate(const Topology& topology, const Path& path,
                  const std::map<LinkId, std::int64_t>& flows) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const LinkId l : path)
    least =
        std::min(least, std::max<std::int64_t>(topology.link(l).bytes_per_second / flows.at(l), 1));
  return least;
}

/// The way between a device and the bridge nearest to it; empty: none.
Path nearest(const Topology& topology, VertexId device, const std::vector<VertexId>& bridges,
             bool to_host) {
  using Measure = std::tuple<std::size_t, std::int64_t, std::int64_t>;
  Path best;
  Measure least{};
  for (const VertexId bridge : bridges) {
    const auto found = to_host ? topology.path(device, bridge) : topology.path(bridge, device);
    if (found.empty()) continue;
    Path path(found.begin(), found.end());
    std::map<LinkId, std::int64_t> alone;
    for (const LinkId l : path) alone[l] = 1;
    const Measure measure{path.size(), latency_ps(topology, path), -rate(topology, path, alone)};
    if (!best.empty() && measure >= least) continue;
    best = std::move(path);
    least = measure;
  }
  return best;
}

}  // namespace

std::vector<HostCopies::Ways> HostCopies::ways_of_host(std::uint32_t host,
                                                       const std::vector<VertexId>& bridges) const {
  std::vector<VertexId> devices;
  const std::uint32_t each = topology_.devices_per_host();
  for (std::uint32_t i = 0; i < each; ++i) devices.push_back(topology_.device(host * each + i));
  std::vector<Ways> ways(devices.size());
  for (const bool to_host : {true, false}) {
    std::vector<Path> paths;
    std::map<LinkId, std::int64_t> flows;
    for (const VertexId device : devices) {
      paths.push_back(nearest(topology_, device, bridges, to_host));
      for (const LinkId l : paths.back()) ++flows[l];
    }
    for (std::size_t i = 0; i < paths.size(); ++i) {
      if (paths[i].empty()) continue;
      (to_host ? ways[i].to_host : ways[i].from_host) =
          Way{rate(topology_, paths[i], flows), latency_ps(topology_, paths[i])};
    }
  }
  return ways;
}

void HostCopies::find() const {
  const std::uint32_t hosts = topology_.host_copies() ? 1 : topology_.hosts();
  std::vector<std::vector<VertexId>> bridges(hosts);
  for (std::uint32_t i = 0; i < topology_.vertices().size(); ++i) {
    const topologies::Vertex& v = topology_.vertex(VertexId(i));
    if (v.host < hosts && v.kind == topologies::VertexKind::kHostBridge)
      bridges[v.host].push_back(VertexId(i));
  }
  for (std::uint32_t host = 0; host < hosts; ++host) {
    std::vector<Ways> more = ways_of_host(host, bridges[host]);
    ways_.insert(ways_.end(), more.begin(), more.end());
  }
}

std::optional<HostCopies::Way> HostCopies::slowest(bool to_host, int first_rank,
                                                   int rank_count) const {
  std::call_once(once_, [&] { find(); });
  Way slowest{std::numeric_limits<std::int64_t>::max(), 0};
  const int looked_at = std::min(rank_count, as_int(ways_.size()));
  for (int i = 0; i < looked_at; ++i) {
    const Ways& ways = ways_[as_index(first_rank + i) % ways_.size()];
    const std::optional<Way>& way = to_host ? ways.to_host : ways.from_host;
    if (!way) return std::nullopt;
    slowest.bytes_per_second = std::min(slowest.bytes_per_second, way->bytes_per_second);
    slowest.latency_ps = std::max(slowest.latency_ps, way->latency_ps);
  }
  return slowest;
}

}  // namespace orrery::costmodel
