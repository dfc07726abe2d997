// Random clusters on every fabric: routes against breadth-first search, classes against their
// definition, fluid Clos networks against all their switches one by one.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>

#include "tests/unit/topologies/fixture.h"
#include "topologies/builder.h"
#include "topologies/topology.h"

namespace orrery::topologies {
namespace {

DeviceModel model_of(const char* name) {
  return {name, base::FlopsPerSecond(1), base::FlopsPerSecond(1), base::BytesPerSecond(1),
          1,    base::Seconds(0),        base::Watts(),           "invented"};
}

/// `kinds` kinds of hosts: two devices and 1..2 cards on one switch.
TopologyBuilder any_hosts(uint32_t kinds, uint32_t cards) {
  TopologyBuilder b("random");
  for (uint32_t k = 0; k < kinds; ++k) {
    const uint32_t model = b.add_model(model_of(k == 0 ? "a" : "b"));
    std::vector<VertexId> ends = {b.add_device("x", k, model), b.add_device("y", k, model)};
    for (uint32_t j = 0; j < cards; ++j)
      ends.push_back(b.add_vertex(VertexKind::kNic, "n" + std::to_string(j), k));
    const VertexId hub = b.add_vertex(VertexKind::kSwitch, "s", k);
    for (const VertexId end : ends) b.add_duplex(end, hub, 1000 + k, base::Seconds(1e-6), "wire");
  }
  return b;
}

FabricSpec any_spec(uint32_t hosts) {
  FabricSpec spec{.name = "net",
                  .kind = "ib",
                  .bytes_per_second = 96,
                  .latency = base::Seconds(1e-6),
                  .switch_latency = base::Seconds(1e-6)};
  spec.shape = *rc::gen::element(FabricShape::kSwitch, FabricShape::kLeafSpine,
                                 FabricShape::kRailOptimised, FabricShape::kFatTree,
                                 FabricShape::kTree, FabricShape::kDragonfly, FabricShape::kTorus);
  spec.paths = *rc::gen::element(PathChoice::kFluid, PathChoice::kEcmp, PathChoice::kHashed);
  spec.ecmp_seed = *rc::gen::inRange<uint64_t>(0, 3);
  spec.ports_per_leaf = *rc::gen::inRange(1u, 5u);
  spec.hosts_per_leaf = *rc::gen::inRange(1u, 4u);
  spec.spines = *rc::gen::inRange(1u, 4u);
  spec.radix = *rc::gen::element(4u, 6u, 8u);
  spec.oversubscription =
      spec.shape == FabricShape::kFatTree ? 1 : *rc::gen::element(1.0, 2.0, 3.0);
  spec.routers_per_group = *rc::gen::inRange(2u, 4u);
  spec.ports_per_router = *rc::gen::inRange(1u, 3u);
  spec.global_links_per_router = *rc::gen::inRange(3u, 5u);
  spec.local_bytes_per_second = 48;
  spec.global_bytes_per_second = 24;
  for (uint32_t d = 2, left = hosts; left > 1; ++d) {
    if (left % d != 0) continue;
    if (spec.dimensions.size() < 2) {
      spec.dimensions.push_back(d);
      left /= d--;
    } else {
      spec.dimensions.push_back(left);
      left = 1;
    }
  }
  // A random tree: every switch but the last hangs on a later one.
  const uint32_t switches = *rc::gen::inRange(1u, 5u);
  for (uint32_t s = 0; s < switches; ++s) {
    spec.tree.push_back({.name = "t" + std::to_string(s),
                         .hosts = s == 0 ? hosts : 0,
                         .uplink_bytes_per_second = 50});
    if (s + 1 < switches) spec.tree[s].parent = *rc::gen::inRange(s + 1, switches);
  }
  for (uint32_t s = 1; s < switches; ++s) {
    const uint32_t moved = *rc::gen::inRange(0u, spec.tree[0].hosts + 1);
    spec.tree[s].hosts = moved;
    spec.tree[0].hosts -= moved;
  }
  return spec;
}

struct Cluster {
  Topology topology;
  FabricSpec spec;
};

Cluster any_cluster(uint32_t most_kinds = 2) {
  const uint32_t kinds = *rc::gen::inRange(1u, most_kinds + 1), cards = *rc::gen::inRange(1u, 3u),
                 first = *rc::gen::inRange(2u, 9u);
  const std::vector<uint32_t> counts =
      kinds == 1 ? std::vector<uint32_t>{first}
                 : std::vector<uint32_t>{first, *rc::gen::inRange(1u, 4u)};
  const FabricSpec spec = any_spec(std::accumulate(counts.begin(), counts.end(), 0u));
  auto topology = any_hosts(kinds, cards).build_cluster(counts, spec);
  RC_PRE(topology.has_value());  // too many cards for the shape
  return {*std::move(topology), spec};
}

/// Hops from a vertex to all others when only the two hosts at the ends, and the fabric, forward.
uint32_t fewest_hops(const Topology& t, VertexId from, VertexId to) {
  std::vector<uint32_t> hops(t.vertices().size(), std::numeric_limits<uint32_t>::max());
  std::deque<VertexId> queue{from};
  hops[from.raw()] = 0;
  while (!queue.empty()) {
    const VertexId v = queue.front();
    queue.pop_front();
    if (v != from && t.vertex(v).kind == VertexKind::kDevice) continue;
    for (const LinkId id : links_from(t, v)) {
      if (t.link(id).bytes_per_second == 0) continue;  // failed
      const VertexId next = t.link(id).to;
      const uint32_t host = t.vertex(next).host;
      if (hops[next.raw()] != std::numeric_limits<uint32_t>::max() ||
          (host != kNoHost && host != t.vertex(from).host && host != t.vertex(to).host))
        continue;
      hops[next.raw()] = hops[v.raw()] + 1;
      queue.push_back(next);
    }
  }
  return hops[to.raw()];
}

// Where every host has one card there is no choice but the fabric's, and that is a shortest path.
RC_GTEST_PROP(Fabric, RoutesAreConnectedAndShortest, ()) {
  const Cluster c = any_cluster();
  const Topology& t = c.topology;
  for (uint32_t a = 0; a < t.device_count(); ++a) {
    for (uint32_t b = 0; b < t.device_count(); ++b) {
      VertexId at = t.device(a);
      for (const LinkId id : t.route(a, b)) {
        RC_ASSERT(t.link(id).from == at);
        at = t.link(id).to;
      }
      RC_ASSERT(at == t.device(b));
      const bool one_card = t.cluster()->runs.front().nics.size() == 1;
      if (one_card || t.same_host(a, b))
        RC_ASSERT(t.route(a, b).size() == fewest_hops(t, t.device(a), t.device(b)));
    }
  }
}

// Routes without a failed link stay; the others are shortest of what is left; and exactly the pairs
// without one are cut off.
RC_GTEST_PROP(Fabric, FailedLinksAreGoneAround, ()) {
  const Topology whole = any_cluster().topology;
  std::vector<LinkRate> failed;
  for (uint32_t l = 0; l < whole.links().size(); ++l) {
    if (*rc::gen::inRange(0, 8) == 0) failed.push_back({LinkId(l), 0});
  }
  const Topology t = whole.with_links(failed);
  const auto broken = [&](LinkId id) { return t.link(id).bytes_per_second == 0; };
  std::vector<uint32_t> ranks(t.device_count());
  std::iota(ranks.begin(), ranks.end(), 0u);
  bool apart = false;
  for (const uint32_t a : ranks) {
    for (const uint32_t b : ranks) {
      const auto route = t.route(a, b), before = whole.route(a, b);
      RC_ASSERT(std::none_of(route.begin(), route.end(), broken));
      if (a == b) continue;
      const bool cut =
          fewest_hops(t, t.device(a), t.device(b)) == std::numeric_limits<uint32_t>::max();
      RC_ASSERT(cut == route.empty());
      apart = apart || cut;
      if (std::none_of(before.begin(), before.end(), broken))
        RC_ASSERT(std::equal(route.begin(), route.end(), before.begin(), before.end()));
      else if (!cut)
        RC_ASSERT(route.size() == fewest_hops(t, t.device(a), t.device(b)));
    }
  }
  const auto pair = t.cut_off(ranks);
  RC_ASSERT(pair.has_value() == apart);
  if (pair) RC_ASSERT(t.route(pair->first, pair->second).empty());
}

RC_GTEST_PROP(Fabric, SameInputsGiveTheSameRoutes, ()) {
  const Cluster c = any_cluster(1);
  const Topology again = c.topology;
  for (uint32_t a = c.topology.device_count(); a-- > 0;) {
    for (uint32_t b = 0; b < c.topology.device_count(); ++b) {
      const auto x = c.topology.route(a, b), y = again.route(a, b);
      RC_ASSERT(std::equal(x.begin(), x.end(), y.begin(), y.end()));
    }
  }
}

/// The same graph without its layout: the general solver.
Topology flattened(const Topology& t) {
  TopologyBuilder b("flat");
  std::vector<uint32_t> models;
  for (const DeviceModel& m : t.device_models()) models.push_back(b.add_model(m));
  for (const Vertex& v : t.vertices()) {
    if (v.kind == VertexKind::kDevice)
      b.add_device(v.name, v.host, models.front());
    else
      b.add_vertex(v.kind, v.name, v.host);
  }
  for (const Link& l : t.links()) b.add_link(l.from, l.to, l.bytes_per_second, l.latency, l.kind);
  auto flat = std::move(b).build();
  RC_ASSERT(flat.has_value());
  return *std::move(flat);
}

/// Loads of a unit flow that is split evenly, at every vertex, over the links that lead nearer.
std::map<LinkId, double> even_split(const Topology& t, uint32_t from, uint32_t to) {
  std::map<VertexId, std::vector<LinkId>> in, out;
  for (uint32_t l = 0; l < t.links().size(); ++l) {
    in[t.link(LinkId(l)).to].push_back(LinkId(l));
    out[t.link(LinkId(l)).from].push_back(LinkId(l));
  }
  std::map<VertexId, int> hops{{t.device(to), 0}};
  std::vector<VertexId> nearest{t.device(to)};
  for (std::size_t i = 0; i < nearest.size(); ++i) {
    const int beyond = hops[nearest[i]] + 1;
    for (const LinkId l : in[nearest[i]]) {
      if (hops.try_emplace(t.link(l).from, beyond).second) nearest.push_back(t.link(l).from);
    }
  }
  std::map<VertexId, double> flow{{t.device(from), 1}};
  std::map<LinkId, double> loads;
  for (std::size_t i = nearest.size(); i-- > 0;) {  // the farthest first
    const VertexId vertex = nearest[i];
    std::vector<LinkId> ways;
    for (const LinkId l : out[vertex]) {
      const auto next = hops.find(t.link(l).to);
      if (next != hops.end() && next->second + 1 == hops[vertex]) ways.push_back(l);
    }
    for (const LinkId l : ways) {
      if (flow[vertex] == 0) break;
      loads[l] = flow[vertex] / static_cast<double>(ways.size());
      flow[t.link(l).to] += loads[l];
    }
  }
  return loads;
}

// Why upper tiers may be one switch: split evenly over all switches, every uplink of a leaf carries
// the same load, and together they carry what the one fluid uplink does.
RC_GTEST_PROP(Fluid, ClosEqualsAllItsSwitches, ()) {
  FabricSpec spec = any_spec(6);
  spec.shape = *rc::gen::element(FabricShape::kLeafSpine, FabricShape::kFatTree);
  spec.paths = PathChoice::kEcmp;
  const std::vector<uint32_t> counts = {6};
  const auto whole = any_hosts(1, 1).build_cluster(counts, spec);
  spec.paths = PathChoice::kFluid;
  const auto fluid = any_hosts(1, 1).build_cluster(counts, spec);
  RC_PRE(whole.has_value() && fluid.has_value());
  const Topology flat = flattened(*whole);
  std::map<std::string, std::map<LinkId, double>> up;  // leaf: load of its uplinks
  std::map<std::string, double> expected;
  for (int i = 0; i < 10; ++i) {
    const auto a = *rc::gen::inRange(0u, 12u), b = *rc::gen::inRange(0u, 12u);
    if (flat.host_of(a) == flat.host_of(b)) continue;
    for (const auto& [id, load] : even_split(flat, a, b)) {
      const Link& link = flat.link(id);
      if (flat.vertex(link.from).host != kNoHost || flat.vertex(link.to).host != kNoHost) continue;
      up[flat.vertex(link.from).name][id] += load;
    }
    for (const LinkId id : fluid->route(a, b)) {
      const Vertex& from = fluid->vertex(fluid->link(id).from);
      if (from.host == kNoHost && fluid->vertex(fluid->link(id).to).host == kNoHost)
        expected[from.name] += 1;
    }
  }
  for (const auto& [leaf, loads] : up) {
    if (!leaf.starts_with("leaf") && !leaf.starts_with("edge")) continue;
    double sum = 0;
    for (const auto& [link, load] : loads) {
      RC_ASSERT(std::abs(load - loads.begin()->second) < 1e-9);
      sum += load;
    }
    RC_ASSERT(std::abs(sum - expected[leaf]) < 1e-9);
  }
}

// Classes as cluster.h defines them.
RC_GTEST_PROP(Classes, AreEquitable, ()) {
  const Cluster c = any_cluster();
  const Topology& t = c.topology;
  std::map<uint32_t, std::tuple<int64_t, double, std::string, uint32_t, uint32_t>> of_link;
  for (uint32_t l = 0; l < t.links().size(); ++l) {
    const Link& link = t.link(LinkId(l));
    const auto mine = std::tuple(link.bytes_per_second, link.latency.raw(), link.kind,
                                 t.vertex_class(link.from), t.vertex_class(link.to));
    RC_ASSERT(t.link_class(LinkId(l)) < t.link_classes());
    RC_ASSERT(of_link.try_emplace(t.link_class(LinkId(l)), mine).first->second == mine);
  }
  std::vector<std::map<uint32_t, int>> out(t.vertices().size()), in(t.vertices().size());
  for (uint32_t l = 0; l < t.links().size(); ++l) {
    ++out[t.link(LinkId(l)).from.raw()][t.link_class(LinkId(l))];
    ++in[t.link(LinkId(l)).to.raw()][t.link_class(LinkId(l))];
  }
  std::map<uint32_t, uint32_t> first;
  for (uint32_t v = 0; v < t.vertices().size(); ++v) {
    RC_ASSERT(t.vertex_class(VertexId(v)) < t.vertex_classes());
    const uint32_t other = first.try_emplace(t.vertex_class(VertexId(v)), v).first->second;
    RC_ASSERT(t.vertices()[v].kind == t.vertices()[other].kind);
    RC_ASSERT(out[v] == out[other] && in[v] == in[other]);
  }
  RC_ASSERT(of_link.size() == t.link_classes() && first.size() == t.vertex_classes());
}

// Renumbering: the same host with its parts and links added in another order costs the same.
RC_GTEST_PROP(Routes, CostTheSameInAnyOrderOfParts, ()) {
  struct Wire {
    uint32_t a, b;
    int64_t rate;
  };
  const uint32_t devices = *rc::gen::inRange(2u, 5u), switches = *rc::gen::inRange(1u, 4u),
                 count = devices + switches;
  std::vector<Wire> wires;
  for (uint32_t v = 0; v < count; ++v) {
    if (v != devices)
      wires.push_back(
          {v, v < devices ? devices + v % switches : devices, *rc::gen::inRange<int64_t>(1, 4)});
  }
  for (int i = 0; i < 4; ++i) {
    const uint32_t a = *rc::gen::inRange(0u, count), b = *rc::gen::inRange(0u, count);
    if (a != b) wires.push_back({a, b, *rc::gen::inRange<int64_t>(1, 4)});
  }
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  const auto build = [&](const std::vector<uint32_t>& vertices, const std::vector<Wire>& links) {
    TopologyBuilder b("host");
    const uint32_t model = b.add_model(model_of("d"));
    std::map<uint32_t, VertexId> id;
    for (const uint32_t v : vertices)
      id[v] = v < devices ? b.add_device(std::to_string(v), 0, model)
                          : b.add_vertex(VertexKind::kSwitch, std::to_string(v), 0);
    for (const Wire& w : links)
      b.add_duplex(id.at(w.a), id.at(w.b), w.rate, base::Seconds(1e-6), "wire");
    auto t = std::move(b).build();
    RC_ASSERT(t.has_value());
    std::map<std::pair<std::string, std::string>, std::pair<size_t, int64_t>> costs;
    for (uint32_t x = 0; x < devices; ++x) {
      for (uint32_t y = 0; y < devices; ++y) {
        int64_t width = std::numeric_limits<int64_t>::max();
        for (const LinkId l : t->route(x, y)) width = std::min(width, t->link(l).bytes_per_second);
        costs[{t->vertex(t->device(x)).name, t->vertex(t->device(y)).name}] = {
            t->route(x, y).size(), width};
      }
    }
    return costs;
  };
  const auto before = build(order, wires);
  std::vector<uint32_t> reversed(order.rbegin(), order.rend());
  std::vector<Wire> turned(wires.rbegin(), wires.rend());
  RC_ASSERT(build(reversed, turned) == before);
}

}  // namespace
}  // namespace orrery::topologies
