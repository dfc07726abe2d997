// Degraded and failed links: what keeps its route, what goes around, what is cut off.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/topologies/fixture.h"

namespace orrery::topologies {
namespace {

constexpr const char* kPair = R"(
schema: orrery.topology/1
name: pair
description: two devices, two cards, two spines
device_models:
  - {name: D, peak_fp32: 10 TFLOP/s, peak_bf16: 100 TFLOP/s, memory_bandwidth: 1000 GB/s,
     memory: 16 GiB, launch_overhead: 5 us, source: invented}
host:
  source: invented
  devices: [{name: gpu, model: D, count: 2}]
  switches: [{name: hub}, {name: bridge}]
  nics: [{name: nic, count: 2}]
  links:
    - {from: gpu, to: hub, kind: nvlink, bandwidth_per_direction: 100 GB/s, latency: 1 us,
       source: invented}
    - {from: gpu, to: bridge, kind: pcie, bandwidth_per_direction: 10 GB/s, latency: 2 us,
       source: invented}
    - {from: nic, to: bridge, kind: pcie, bandwidth_per_direction: 10 GB/s, latency: 2 us,
       source: invented}
fabric: {name: net, shape: leaf_spine, ports_per_leaf: 2, spines: 2, paths: ecmp, kind: ib,
 bandwidth_per_direction: 5 GB/s, latency: 1 us, switch_latency: 1 us, source: invented}
)";

LinkId link_between(const Topology& t, std::string_view from, std::uint32_t from_host,
                    std::string_view to) {
  for (std::uint32_t l = 0; l < t.links().size(); ++l) {
    const Vertex &a = t.vertex(t.links()[l].from), &b = t.vertex(t.links()[l].to);
    if (a.name == from && a.host == from_host && b.name == to) return LinkId(l);
  }
  ADD_FAILURE() << from << " -> " << to;
  return LinkId(0);
}

std::vector<std::uint32_t> all_ranks(const Topology& t) {
  std::vector<std::uint32_t> ranks(t.device_count());
  std::iota(ranks.begin(), ranks.end(), 0U);
  return ranks;
}

TEST(Detours, ASlowerLinkKeepsItsRoutesAndRemembersItsRate) {
  const Topology t = expect_ok(parse_topology(kPair, "pair.yaml", 2));
  const LinkId link = link_between(t, "gpu[0]", 0, "hub");
  const Topology slow = t.with_links(std::vector<LinkRate>{{link, 1'000'000'000}});
  EXPECT_EQ(describe(slow, 0, 1), "0/gpu[0] > 0/hub > 0/gpu[1]");
  EXPECT_EQ(slow.link(link).bytes_per_second, 1'000'000'000);
  EXPECT_EQ(slow.built_rate(link), 100'000'000'000);
  EXPECT_FALSE(slow.detoured(0, 1));
  EXPECT_FALSE(slow.cut_off(all_ranks(slow)).has_value());
  EXPECT_NE(slow.fingerprint(), t.fingerprint());
  EXPECT_FALSE(slow.host_copies().has_value());
  EXPECT_EQ(t.with_links({}).fingerprint(), t.fingerprint());
}

TEST(Detours, InsideAHostTheSlowerWayIsTaken) {
  const Topology t = expect_ok(parse_topology(kPair, "pair.yaml", 2));
  const Topology broken =
      t.with_links(std::vector<LinkRate>{{link_between(t, "gpu[0]", 0, "hub"), 0}});
  EXPECT_EQ(describe(broken, 0, 1), "0/gpu[0] > 0/bridge > 0/gpu[1]");
  EXPECT_TRUE(broken.detoured(0, 1));
  EXPECT_EQ(describe(broken, 1, 0), "0/gpu[1] > 0/hub > 0/gpu[0]");  // the other direction works
  EXPECT_EQ(describe(broken, 2, 3), "1/gpu[0] > 1/hub > 1/gpu[1]");
  EXPECT_FALSE(broken.cut_off(all_ranks(broken)).has_value());
}

TEST(Detours, AcrossHostsTheOtherCardIsTaken) {
  const Topology t = expect_ok(parse_topology(kPair, "pair.yaml", 2));
  EXPECT_EQ(describe(t, 0, 2).substr(0, 31), "0/gpu[0] > 0/bridge > 0/nic[0] ");
  const Topology broken =
      t.with_links(std::vector<LinkRate>{{link_between(t, "nic[0]", 0, "leaf[0]"), 0}});
  EXPECT_EQ(describe(broken, 0, 2).substr(0, 31), "0/gpu[0] > 0/bridge > 0/nic[1] ");
  EXPECT_EQ(describe(broken, 1, 2), describe(t, 1, 2));  // on the other card all along
}

TEST(Detours, TheOtherSpineIsTaken) {
  const Topology t = expect_ok(parse_topology(kPair, "pair.yaml", 2));
  const std::string before = describe(t, 0, 2);
  const std::string spine = before.find("spine[0]") != std::string::npos ? "spine[0]" : "spine[1]";
  const Topology broken =
      t.with_links(std::vector<LinkRate>{{link_between(t, "leaf[0]", kNoHost, spine), 0}});
  const std::string after = describe(broken, 0, 2);
  EXPECT_NE(after.find(spine == "spine[0]" ? "spine[1]" : "spine[0]"), std::string::npos)
      << before << " became " << after;
  EXPECT_EQ(broken.route(0, 2).size(), t.route(0, 2).size());
}

TEST(Detours, NoHostForwardsForOthers) {
  const Topology t = expect_ok(parse_topology(kPair, "pair.yaml", 3));
  std::vector<LinkRate> rates;
  for (const char* nic : {"nic[0]", "nic[1]"})
    rates.push_back({link_between(t, nic, 1, "leaf[1]"), 0});
  const Topology broken = t.with_links(rates);
  const auto pair = broken.cut_off(all_ranks(broken));
  ASSERT_TRUE(pair.has_value());
  EXPECT_EQ(pair->first / 2, 1U);
  EXPECT_NE(pair->second / 2, 1U);
  EXPECT_TRUE(broken.route(pair->first, pair->second).empty());
  EXPECT_FALSE(broken.route(pair->second, pair->first).empty());  // only its way out is gone
  EXPECT_FALSE(broken.cut_off(std::vector<std::uint32_t>{0, 1, 4, 5}).has_value());
  EXPECT_FALSE(broken.cut_off(std::vector<std::uint32_t>{2, 3}).has_value());
}

TEST(Detours, CopiesKeepTheirRoutes) {
  const Topology t = expect_ok(parse_topology(kPair, "pair.yaml", 2));
  const Topology broken =
      t.with_links(std::vector<LinkRate>{{link_between(t, "gpu[0]", 0, "hub"), 0}});
  const Topology copy = broken;
  EXPECT_EQ(describe(copy, 0, 1), describe(broken, 0, 1));
}

}  // namespace
}  // namespace orrery::topologies
