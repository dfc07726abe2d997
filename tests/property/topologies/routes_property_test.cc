// Routes of random graphs and of random clusters, against an enumeration of every path.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "base/sim_time.h"
#include "tests/unit/topologies/fixture.h"
#include "topologies/builder.h"
#include "topologies/topology.h"

namespace orrery::topologies {
namespace {

DeviceModel any_model() {
  return {.name = "device",
          .peak_fp32 = base::FlopsPerSecond(1e12),
          .peak_bf16 = base::FlopsPerSecond(1e12),
          .memory_bandwidth = base::BytesPerSecond(1e12),
          .memory_bytes = 1,
          .launch_overhead = base::Seconds(0),
          .source = "invented"};
}

// Few different values, so that ties are common.
int64_t any_capacity() { return *rc::gen::inRange<int64_t>(1, 4); }
base::Seconds any_latency() { return base::Seconds(*rc::gen::inRange(0, 3) * 1e-6); }

/// A host of 1..4 devices, 1..3 switches and 1..2 cards. A spine of links keeps it connected; the
/// rest is random.
TopologyBuilder any_host(uint32_t devices) {
  TopologyBuilder b("random");
  const uint32_t model = b.add_model(any_model());
  std::vector<VertexId> ends, switches;
  for (uint32_t i = 0; i < devices; ++i)
    ends.push_back(b.add_device("d" + std::to_string(i), 0, model));
  const int switch_count = *rc::gen::inRange(1, 4);
  for (int i = 0; i < switch_count; ++i) {
    switches.push_back(b.add_vertex(VertexKind::kSwitch, "s" + std::to_string(i), 0));
  }
  const int cards = *rc::gen::inRange(1, 3);
  for (int i = 0; i < cards; ++i)
    ends.push_back(b.add_vertex(VertexKind::kNic, "n" + std::to_string(i), 0));
  const auto join = [&](VertexId x, VertexId y) {
    b.add_duplex(x, y, any_capacity(), any_latency(), "wire");
  };
  for (size_t i = 1; i < switches.size(); ++i) join(switches[i - 1], switches[i]);
  for (const VertexId end : ends) join(end, *rc::gen::elementOf(switches));
  std::vector<VertexId> all = ends;
  all.insert(all.end(), switches.begin(), switches.end());
  const int extra = *rc::gen::inRange(0, 6);
  for (int i = 0; i < extra; ++i) {
    const VertexId x = *rc::gen::elementOf(all), y = *rc::gen::elementOf(all);
    if (x != y) join(x, y);
  }
  return b;
}

using Key = std::tuple<size_t, int64_t, int64_t, std::vector<LinkId>>;

/// The route rule of topology.h, word for word, over every simple path.
void enumerate(const Topology& t, VertexId at, VertexId target, std::vector<bool>& seen,
               std::vector<LinkId>& path, std::optional<Key>& best) {
  if (at == target) {
    int64_t latency = 0, bottleneck = std::numeric_limits<int64_t>::max();
    for (const LinkId id : path) {
      latency += base::ceil_ps(t.link(id).latency);
      bottleneck = std::min(bottleneck, t.link(id).bytes_per_second);
    }
    Key key{path.size(), latency, -bottleneck, path};
    if (!best || key < *best) best = std::move(key);
    return;
  }
  if (!path.empty() && t.vertex(at).kind == VertexKind::kDevice) return;
  if (best && path.size() >= std::get<0>(*best)) return;  // hops come first
  seen[at.raw()] = true;
  for (const LinkId id : links_from(t, at)) {
    const VertexId next = t.link(id).to;
    if (seen[next.raw()]) continue;
    path.push_back(id);
    enumerate(t, next, target, seen, path, best);
    path.pop_back();
  }
  seen[at.raw()] = false;
}

/// The best path between two vertices; with `host`, inside that host.
std::optional<Key> best_key(const Topology& t, VertexId from, VertexId to,
                            std::optional<uint32_t> host) {
  std::vector<bool> seen(t.vertices().size(), false);
  for (size_t v = 0; v < seen.size(); ++v) seen[v] = host && t.vertices()[v].host != *host;
  std::vector<LinkId> path;
  std::optional<Key> best;
  enumerate(t, from, to, seen, path, best);
  return best;
}

/// The card of topology.h: nearest by hops, latency, width; of k that tie, the device's number mod
/// k.
VertexId best_nic(const Topology& t, uint32_t rank, bool out) {
  const uint32_t host = t.host_of(rank);
  std::vector<std::pair<std::tuple<size_t, int64_t, int64_t>, VertexId>> nics;
  for (uint32_t v = 0; v < t.vertices().size(); ++v) {
    if (t.vertices()[v].kind != VertexKind::kNic || t.vertices()[v].host != host) continue;
    const auto key = out ? best_key(t, t.device(rank), VertexId(v), host)
                         : best_key(t, VertexId(v), t.device(rank), host);
    nics.emplace_back(std::tuple(std::get<0>(*key), std::get<1>(*key), std::get<2>(*key)),
                      VertexId(v));
  }
  std::sort(nics.begin(), nics.end());
  const auto ties = std::count_if(nics.begin(), nics.end(),
                                  [&](const auto& n) { return n.first == nics.front().first; });
  return nics[rank % t.devices_per_host() % static_cast<size_t>(ties)].second;
}

std::vector<LinkId> best_path(const Topology& t, uint32_t from, uint32_t to) {
  if (t.same_host(from, to))
    return std::get<3>(*best_key(t, t.device(from), t.device(to), t.host_of(from)));
  const VertexId out = best_nic(t, from, true), in = best_nic(t, to, false);
  std::vector<LinkId> path;
  const std::vector<std::tuple<VertexId, VertexId, std::optional<uint32_t>>> pieces = {
      {t.device(from), out, t.host_of(from)},
      {out, in, std::nullopt},
      {in, t.device(to), t.host_of(to)}};
  for (const auto& [a, b, host] : pieces) {
    const std::vector<LinkId> piece = std::get<3>(*best_key(t, a, b, host));
    path.insert(path.end(), piece.begin(), piece.end());
  }
  return path;
}

Topology any_cluster() {
  const auto devices = *rc::gen::inRange<uint32_t>(1, 5);
  const auto hosts = *rc::gen::inRange<uint32_t>(1, 4);
  const FabricSpec fabric{
      .name = "core", .kind = "ib", .bytes_per_second = any_capacity(), .latency = any_latency()};
  auto topology = any_host(devices).build_cluster(std::array{hosts}, fabric);
  RC_ASSERT(topology.has_value());
  return *std::move(topology);
}

RC_GTEST_PROP(Routes, AreTheBestOfAllPaths, ()) {
  const Topology t = any_cluster();
  for (uint32_t a = 0; a < t.device_count(); ++a) {
    for (uint32_t b = 0; b < t.device_count(); ++b) {
      const auto route = t.route(a, b);
      const std::vector<LinkId> expected = a == b ? std::vector<LinkId>{} : best_path(t, a, b);
      RC_ASSERT(std::vector<LinkId>(route.begin(), route.end()) == expected);
    }
  }
}

RC_GTEST_PROP(Routes, ConnectTheirEndsThroughVerticesThatForward, ()) {
  const Topology t = any_cluster();
  const auto a = *rc::gen::inRange<uint32_t>(0, t.device_count());
  const auto b = *rc::gen::inRange<uint32_t>(0, t.device_count());
  VertexId at = t.device(a);
  for (const LinkId id : t.route(a, b)) {
    RC_ASSERT(t.link(id).from == at);
    at = t.link(id).to;
    RC_ASSERT(at == t.device(b) || t.vertex(at).kind != VertexKind::kDevice);
  }
  RC_ASSERT(at == t.device(b));
}

// All links are duplex here, so the way back costs the same; its vertices may differ (ids decide
// ties).
RC_GTEST_PROP(Routes, AreAsLongBackAsForth, ()) {
  const Topology t = any_cluster();
  const auto cost = [&](uint32_t a, uint32_t b) {
    int64_t latency = 0, bottleneck = std::numeric_limits<int64_t>::max();
    for (const LinkId id : t.route(a, b)) {
      latency += base::ceil_ps(t.link(id).latency);
      bottleneck = std::min(bottleneck, t.link(id).bytes_per_second);
    }
    return std::tuple(t.route(a, b).size(), latency, bottleneck);
  };
  for (uint32_t a = 0; a < t.device_count(); ++a) {
    for (uint32_t b = 0; b < a; ++b) RC_ASSERT(cost(a, b) == cost(b, a));
  }
}

RC_GTEST_PROP(Routes, DoNotDependOnTheOrderOfQuestions, ()) {
  const Topology t = any_cluster();
  const Topology again = t;
  const uint32_t n = t.device_count();
  for (uint32_t i = 0; i < n * n; ++i) t.route(i / n, i % n);
  for (uint32_t i = n * n; i-- > 0;) {
    const auto x = t.route(i / n, i % n), y = again.route(i / n, i % n);
    RC_ASSERT(std::equal(x.begin(), x.end(), y.begin(), y.end()));
  }
}

// A cluster of copies and the same graph added vertex by vertex: the cards that a cluster
// prescribes cost nothing.
RC_GTEST_PROP(Routes, OfCopiesAreAsGoodAsThoseOfTheWholeGraph, ()) {
  const Topology copies = any_cluster();
  TopologyBuilder b("whole");
  const uint32_t model = b.add_model(any_model());
  for (const Vertex& v : copies.vertices()) {
    if (v.kind == VertexKind::kDevice) {
      b.add_device(v.name, v.host, model);
    } else {
      b.add_vertex(v.kind, v.name, v.host);
    }
  }
  for (const Link& l : copies.links())
    b.add_link(l.from, l.to, l.bytes_per_second, l.latency, l.kind);
  auto whole = std::move(b).build();
  RC_ASSERT(whole.has_value());
  RC_ASSERT(!whole->host_copies());
  const auto cost = [](const Topology& t, uint32_t x, uint32_t y) {
    int64_t latency = 0, bottleneck = std::numeric_limits<int64_t>::max();
    for (const LinkId id : t.route(x, y)) {
      latency += base::ceil_ps(t.link(id).latency);
      bottleneck = std::min(bottleneck, t.link(id).bytes_per_second);
    }
    return std::tuple(t.route(x, y).size(), latency, bottleneck);
  };
  for (uint32_t x = 0; x < copies.device_count(); ++x) {
    for (uint32_t y = 0; y < copies.device_count(); ++y)
      RC_ASSERT(cost(copies, x, y) == cost(*whole, x, y));
  }
}

TEST(Routes, AreTheSameFromManyThreads) {
  const auto topology = catalog_topology("dgx-h100", 4);
  ASSERT_TRUE(topology);
  const Topology& t = *topology;
  const Topology alone = t;
  std::vector<std::thread> threads;
  for (uint32_t k = 0; k < 4; ++k) {
    threads.emplace_back([&t, k] {
      for (uint32_t i = 0; i < 32 * 32; ++i) t.route((i / 32 + 8 * k) % 32, i % 32);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t a = 0; a < 32; ++a) {
    for (uint32_t b = 0; b < 32; ++b) {
      const auto x = t.route(a, b), y = alone.route(a, b);
      ASSERT_TRUE(std::equal(x.begin(), x.end(), y.begin(), y.end()));
    }
  }
}

}  // namespace
}  // namespace orrery::topologies
