#include "topologies/picture/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

#include "base/check.h"
#include "base/numbers.h"
#include "topologies/graph/max_flow.h"

namespace orrery::topologies {

std::string part_name(const Vertex& vertex) { return vertex.name.substr(0, vertex.name.find('[')); }

double max_flow(const Topology& topology, const std::vector<VertexId>& from,
                const std::vector<VertexId>& to) {
  const auto vertices = count_of(topology.vertices());
  std::vector<Arc> arcs;
  int64_t total = 0;
  for (const Link& link : topology.links()) {
    arcs.push_back({link.from.raw(), link.to.raw(), link.bytes_per_second});
    total += link.bytes_per_second;
  }
  for (const VertexId v : from) arcs.push_back({vertices, v.raw(), total});
  for (const VertexId v : to) arcs.push_back({v.raw(), vertices + 1, total});
  return real(max_flow(vertices + 2, arcs, vertices, vertices + 1));
}

namespace {

/// A tree's switches have names of their own; there the height tells.
std::string label(const Topology& t, VertexId id) {
  const ClusterShape* shape = t.cluster();
  if (id.raw() < (shape == nullptr ? t.vertices().size() : shape->fabric_vertex) ||
      shape->spec.shape != FabricShape::kTree)
    return part_name(t.vertex(id));
  return fmt::format("tier {}", shape->fabric->switches()[id.raw() - shape->fabric_vertex].tier);
}

/// One row per pair of part names, kind, rate and latency, in the order of the first link.
std::vector<Level> levels_of(const Topology& t) {
  std::vector<uint64_t> count(t.link_classes(), 0);
  std::vector<uint32_t> first(t.link_classes(), 0);
  for (uint32_t l = 0; l < t.links().size(); ++l) {
    const uint32_t c = t.link_class(LinkId(l));
    if (count[c]++ == 0) first[c] = l;
  }
  std::vector<Level> levels;
  std::map<std::tuple<bool, std::string, std::string, int64_t, double>, size_t> rows;
  std::vector<uint64_t> directed;
  for (uint32_t c = 0; c < count.size(); ++c) {
    const Link& link = t.links()[first[c]];
    const bool fabric = t.vertex(link.from).host == kNoHost || t.vertex(link.to).host == kNoHost;
    std::string x = label(t, link.from), y = label(t, link.to);
    // Both directions in one row: named as the first of them, that is from the device or card
    // upwards.
    const auto key = [&](std::string parts) {
      return std::tuple(fabric, std::move(parts), link.kind, link.bytes_per_second,
                        link.latency.raw());
    };
    const std::string back = y + " - " + x, parts = rows.contains(key(back)) ? back : x + " - " + y;
    const auto [row, fresh] = rows.try_emplace(key(parts), levels.size());
    if (fresh) {
      levels.push_back({parts, link.kind, fabric, 0, link.bytes_per_second, link.latency});
      directed.push_back(0);
    }
    directed[row->second] += count[c];
  }
  for (size_t i = 0; i < levels.size(); ++i) levels[i].cables = (directed[i] + 1) / 2;
  std::stable_partition(levels.begin(), levels.end(),
                        [](const Level& level) { return !level.fabric; });
  return levels;
}

std::vector<VertexId> devices_of(const Topology& t, uint32_t first, uint32_t count) {
  std::vector<VertexId> devices;
  for (uint32_t rank = first; rank < first + count; ++rank) devices.push_back(t.device(rank));
  return devices;
}

/// Every even split of the devices of one host; the first device stays on the first side.
double exact_bisection(const Topology& t) {
  const uint32_t n = t.device_count();
  double least = std::numeric_limits<double>::infinity();
  for (uint32_t set = 1; set < (1u << n); set += 2) {
    if (as_u32(std::popcount(set)) != n / 2) continue;
    std::vector<VertexId> from, to;
    for (uint32_t rank = 0; rank < n; ++rank)
      (set >> rank & 1 ? from : to).push_back(t.device(rank));
    least = std::min({least, max_flow(t, from, to), max_flow(t, to, from)});
  }
  return least;
}

/// Most links from a device of each host to its first switch, and back; by switch of the fabric, 0
/// where no card is.
struct Reach {
  std::vector<uint32_t> out, in;
};

/// A cluster with a fabric.
struct Cluster {
  const Topology& t;
  const ClusterShape& shape = *t.cluster();

  /// What the devices of the first host of a run send into its cards together.
  double injection(const HostRun& run) const {
    std::vector<Arc> arcs;
    int64_t total = 0;
    const uint32_t source = run.vertices, target = run.vertices + 1;
    for (const Link& link : t.links().subspan(run.first_link, run.own_links)) {
      arcs.push_back({link.from.raw() - run.first_vertex, link.to.raw() - run.first_vertex,
                      link.bytes_per_second});
      total += link.bytes_per_second;
    }
    for (uint32_t v = 0; v < run.vertices; ++v) {
      if (t.vertices()[run.first_vertex + v].kind == VertexKind::kDevice)
        arcs.push_back({source, v, total});
    }
    for (uint32_t j = 0; j < run.nics.size(); ++j) {
      arcs.push_back(
          {run.nics[j], target, t.links()[run.cable_up(run.first_host, j)].bytes_per_second});
    }
    return real(max_flow(run.vertices + 2, arcs, source, target));
  }

  /// Capacity between two halves of the hosts: each host is a vertex that sends (takes) its
  /// injection.
  double flow_between_halves(const std::vector<bool>& second,
                             const std::vector<double>& injections) const {
    const auto switches = count_of(shape.fabric->switches());
    const uint32_t source = switches + shape.hosts, target = source + 1;
    std::vector<Arc> arcs;
    for (const Link& link : t.links().subspan(shape.fabric_link)) {
      arcs.push_back({link.from.raw() - shape.fabric_vertex, link.to.raw() - shape.fabric_vertex,
                      link.bytes_per_second});
    }
    for (size_t r = 0; r < shape.runs.size(); ++r) {
      const HostRun& run = shape.runs[r];
      for (uint32_t host = run.first_host; host < run.first_host + run.hosts; ++host) {
        const uint32_t node = switches + host;
        const auto limit = static_cast<int64_t>(injections[r]);
        arcs.push_back(second[host] ? Arc{node, target, limit} : Arc{source, node, limit});
        std::map<uint32_t, int64_t> leaves;  // cards of one host on one leaf are one arc
        for (uint32_t j = 0; j < run.nics.size(); ++j) {
          const Link& cable = t.links()[run.cable_up(host, j)];
          leaves[cable.to.raw() - shape.fabric_vertex] += cable.bytes_per_second;
        }
        for (const auto& [leaf, capacity] : leaves)
          arcs.push_back(second[host] ? Arc{leaf, node, capacity} : Arc{node, leaf, capacity});
      }
    }
    return real(max_flow(target + 1, arcs, source, target));
  }

  void bisect_cluster(Summary& summary) const {
    std::vector<double> injections;
    for (const HostRun& run : shape.runs) injections.push_back(injection(run));
    std::vector<bool> second(shape.hosts);
    for (uint32_t host = 0; host < shape.hosts; ++host) second[host] = host >= shape.hosts / 2;
    summary.bisection_bytes_per_second = flow_between_halves(second, injections);
    summary.bisection_method =
        "by structure: maximum flow between the first and the second half of the hosts";
    if (shape.spec.shape == FabricShape::kTorus) {
      uint32_t stride = 1;
      for (size_t d = shape.spec.dimensions.size(); d-- > 0; stride *= shape.spec.dimensions[d]) {
        const uint32_t size = shape.spec.dimensions[d];
        if (size % 2 != 0) continue;
        for (uint32_t host = 0; host < shape.hosts; ++host)
          second[host] = host / stride % size >= size / 2;
        summary.bisection_bytes_per_second =
            std::min(summary.bisection_bytes_per_second, flow_between_halves(second, injections));
      }
      summary.bisection_method =
          "by structure: least maximum flow between halves along a dimension";
    }
    summary.injection_bytes_per_second = injections.front();
    double half = 0;
    for (size_t r = 0; r < shape.runs.size(); ++r) half += injections[r] * shape.runs[r].hosts / 2;
    summary.oversubscription = half / summary.bisection_bytes_per_second;
  }

  /// Capacity below : capacity above each tier but the last, the worst of its switches.
  std::vector<TierRatio> tier_ratios() const {
    const auto switches = shape.fabric->switches();
    std::vector<double> below(switches.size(), 0), above(switches.size(), 0);
    for (const Link& link : t.links()) {
      if (t.vertex(link.to).host != kNoHost) continue;
      const uint32_t to = link.to.raw() - shape.fabric_vertex;
      const bool from_host = t.vertex(link.from).host != kNoHost;
      const uint32_t from = from_host ? 0 : link.from.raw() - shape.fabric_vertex;
      if (!from_host && switches[from].tier >= switches[to].tier) continue;
      below[to] += real(link.bytes_per_second);
      if (!from_host) above[from] += real(link.bytes_per_second);
    }
    std::vector<TierRatio> tiers;
    for (size_t s = 0; s < switches.size(); ++s) {
      if (above[s] == 0) continue;
      if (switches[s].tier >= tiers.size()) tiers.resize(switches[s].tier + 1, {"", 0});
      TierRatio& tier = tiers[switches[s].tier];
      if (tier.tier.empty()) tier.tier = label(t, VertexId(shape.fabric_vertex + as_u32(s)));
      tier.ratio = std::max(tier.ratio, below[s] / above[s]);
    }
    std::erase_if(tiers, [](const TierRatio& tier) { return tier.tier.empty(); });
    return tiers;
  }

  Reach reach_of() const {
    const std::vector<uint32_t> none(shape.fabric->switches().size(), 0);
    Reach reach{none, none};
    const VertexId hub(shape.fabric_vertex);
    for (const HostRun& run : shape.runs) {
      for (uint32_t v = run.first_vertex; v < run.first_vertex + run.vertices; ++v) {
        if (t.vertex(VertexId(v)).kind != VertexKind::kDevice) continue;
        const auto out = t.path(VertexId(v), hub), in = t.path(hub, VertexId(v));
        const auto is_cable = [&](LinkId id) {
          return id.raw() >= run.first_link + run.own_links &&
                 id.raw() < run.first_link + run.links;
        };
        const auto up = std::ranges::find_if(out, is_cable),
                   down = std::ranges::find_if(in, is_cable);
        const auto out_hops = as_u32(up - out.begin() + 1), in_hops = as_u32(in.end() - down);
        for (uint32_t h = 0; h < run.hosts; ++h) {
          const auto note = [&](std::vector<uint32_t>& most, VertexId leaf, uint32_t hops) {
            uint32_t& known = most[leaf.raw() - shape.fabric_vertex];
            known = std::max(known, hops);
          };
          const uint32_t shift = h * run.links;
          note(reach.out, t.links()[up->raw() + shift].to, out_hops);
          note(reach.in, t.links()[down->raw() + shift].from, in_hops);
        }
      }
    }
    return reach;
  }

  /// One switch of each class against all: the longest way out, across and in.
  uint32_t cluster_diameter() const {
    const Reach reach = reach_of();
    std::vector<bool> seen(t.vertex_classes(), false);
    uint32_t longest = 0;
    std::vector<uint32_t> path;
    for (uint32_t s = 0; s < reach.out.size(); ++s) {
      const uint32_t c = t.vertex_class(VertexId(shape.fabric_vertex + s));
      if (reach.out[s] == 0 || seen[c]) continue;
      seen[c] = true;
      for (uint32_t to = 0; to < reach.in.size(); ++to) {
        if (reach.in[to] == 0) continue;
        path.clear();
        shape.fabric->route(s, to, 0, path);
        longest = std::max(longest, reach.out[s] + count_of(path) + reach.in[to]);
      }
    }
    return longest;
  }
};

uint32_t host_diameter(const Topology& t, uint32_t first_rank, uint32_t count) {
  uint32_t longest = 0;
  for (uint32_t a = first_rank; a < first_rank + count; ++a) {
    for (uint32_t b = first_rank; b < first_rank + count; ++b)
      longest = std::max(longest, count_of(t.route(a, b)));
  }
  return longest;
}

}  // namespace

Summary summarise(const Topology& t) {
  Summary summary;
  summary.levels = levels_of(t);
  const uint32_t n = t.device_count();
  const bool cluster = t.cluster() != nullptr && t.cluster()->fabric != nullptr;
  if (!cluster) {
    summary.diameter = host_diameter(t, 0, n);
    if (n < 2) return summary;
    const bool exact = n <= kExactDevices;
    summary.bisection_bytes_per_second =
        exact ? exact_bisection(t)
              : max_flow(t, devices_of(t, 0, n / 2), devices_of(t, n / 2, n - n / 2));
    summary.bisection_method =
        exact ? "exact: every even split of the devices"
              : "maximum flow between the first and the second half of the devices";
    return summary;
  }
  for (const HostRun& run : t.cluster()->runs) {
    summary.diameter =
        std::max(summary.diameter,
                 host_diameter(t, run.first_host * t.devices_per_host(), t.devices_per_host()));
  }
  const Cluster whole{t};
  summary.diameter = std::max(summary.diameter, whole.cluster_diameter());
  whole.bisect_cluster(summary);
  summary.tiers = whole.tier_ratios();
  return summary;
}

}  // namespace orrery::topologies
