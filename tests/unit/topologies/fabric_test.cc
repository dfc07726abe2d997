// Switch graphs by hand-counted numbers, and the paths through them.
#include "topologies/fabric/fabric.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "fixture.h"
#include "topologies/picture/summary.h"

namespace orrery::topologies {
namespace {

using namespace base::literals;
using testing::ElementsAre;
using testing::HasSubstr;

/// `devices` on one switch with `cards` cards; device i's nearest cards are all of them.
TopologyBuilder host_of(uint32_t devices, uint32_t cards) {
  TopologyBuilder b("cluster");
  const uint32_t model = b.add_model(plain_model());
  std::vector<VertexId> ends;
  for (uint32_t i = 0; i < devices; ++i)
    ends.push_back(b.add_device("gpu[" + std::to_string(i) + "]", 0, model));
  for (uint32_t i = 0; i < cards; ++i)
    ends.push_back(b.add_vertex(VertexKind::kNic, "nic[" + std::to_string(i) + "]", 0));
  const VertexId hub = b.add_vertex(VertexKind::kSwitch, "pcie", 0);
  for (const VertexId end : ends) b.add_duplex(end, hub, 1'000, 1_us, "pcie");
  return b;
}

FabricSpec spec_of(FabricShape shape) {
  return {.shape = shape,
          .name = "net",
          .kind = "ib",
          .bytes_per_second = 100,
          .latency = 1_us,
          .switch_latency = 1_us};
}

Topology cluster(uint32_t devices, uint32_t cards, uint32_t hosts, const FabricSpec& spec) {
  const std::vector<uint32_t> counts = {hosts};
  return expect_ok(host_of(devices, cards).build_cluster(counts, spec));
}

std::string refusal(uint32_t cards, uint32_t hosts, const FabricSpec& spec) {
  const std::vector<uint32_t> counts = {hosts};
  const auto t = host_of(1, cards).build_cluster(counts, spec);
  return t ? "" : to_string(t.error());
}

TEST(LeafSpine, LeavesHoldTheirCardsAndUplinksAreOversubscribed) {
  FabricSpec spec = spec_of(FabricShape::kLeafSpine);
  spec.ports_per_leaf = 4;
  spec.oversubscription = 4;
  const Topology t = cluster(2, 2, 6, spec);
  EXPECT_EQ(describe(t, 0, 2),
            "0/gpu[0] > 0/pcie > 0/nic[0] > leaf[0] > 1/nic[0] > 1/pcie > 1/gpu[0]");
  EXPECT_EQ(
      describe(t, 1, 11),
      "0/gpu[1] > 0/pcie > 0/nic[1] > leaf[0] > spine > leaf[2] > 5/nic[1] > 5/pcie > 5/gpu[1]");
  EXPECT_EQ(bottleneck_of(t, t.route(1, 11)), 100);  // the uplink has 4 * 100 / 4 too
  const Summary s = summarise(t);
  EXPECT_EQ(s.diameter, 8u);
  ASSERT_EQ(s.tiers.size(), 1u);
  EXPECT_DOUBLE_EQ(s.tiers[0].ratio, 4);
  ASSERT_TRUE(t.host_copies());
  ASSERT_EQ(t.host_copies()->levels.size(), 2u);
  EXPECT_EQ(t.host_copies()->levels[1].hosts, 2u);
  const LinkId uplink = t.route(1, 11)[3];
  EXPECT_EQ(t.host_copies()->level_of(uplink), 1u);
  EXPECT_EQ(t.host_copies()->at_block(uplink, 1), t.route(5, 0)[3]);
  EXPECT_EQ(t.host_copies()->at_block(t.route(11, 1)[2], 1), t.route(3, 11)[2]);  // to leaf
  spec.ports_per_leaf = 3;  // leaves end within hosts
  EXPECT_FALSE(cluster(2, 2, 6, spec).host_copies());
}

TEST(RailOptimised, CardsOfOneRailShareALeaf) {
  FabricSpec spec = spec_of(FabricShape::kRailOptimised);
  spec.hosts_per_leaf = 3;
  const Topology t = cluster(2, 2, 6, spec);
  EXPECT_EQ(describe(t, 0, 4),
            "0/gpu[0] > 0/pcie > 0/nic[0] > leaf[0] > 2/nic[0] > 2/pcie > 2/gpu[0]");
  EXPECT_EQ(describe(t, 1, 5),
            "0/gpu[1] > 0/pcie > 0/nic[1] > leaf[1] > 2/nic[1] > 2/pcie > 2/gpu[1]");
  EXPECT_EQ(
      describe(t, 0, 7),
      "0/gpu[0] > 0/pcie > 0/nic[0] > leaf[0] > spine > leaf[3] > 3/nic[1] > 3/pcie > 3/gpu[1]");
}

// Radix 4: 2 cards an edge switch, 2 edge switches a pod, 4 pods, 16 cards.
TEST(FatTree, CountsAreThoseOfAlFares) {
  FabricSpec spec = spec_of(FabricShape::kFatTree);
  spec.radix = 4;
  spec.paths = PathChoice::kEcmp;
  const Topology t = cluster(1, 1, 16, spec);
  EXPECT_EQ(t.vertices().size(), 16u * 3 + 8 + 8 + 4);         // edge, aggregation, core
  EXPECT_EQ(t.links().size(), 16u * 6 + 2 * (8 * 2 + 8 * 2));  // every tier has 16 cables
  EXPECT_EQ(t.route(0, 1).size(), 2u + 2 + 2);
  EXPECT_EQ(t.route(0, 2).size(), 2u + 4 + 2);
  EXPECT_EQ(t.route(0, 15).size(), 2u + 6 + 2);
  EXPECT_THAT(refusal(1, 17, spec),
              HasSubstr("17 network cards are more than the 16 of a fat tree of radix 4"));
  spec.radix = 5;
  EXPECT_THAT(refusal(1, 2, spec), HasSubstr("radix 5 of a fat tree is not even"));
}

// 4,000 draws of random hashing gave 2.58, 2.11, 1.77, 1.53, 1.37 and 1.18 for 8 links, 3.07, 1.97
// and 1.23 for 16.
TEST(Hashed, TheFullestOfRandomUplinksIsThatMuchAboveTheMean) {
  const std::vector<std::pair<double, double>> eight = {{1, 2.58}, {2, 2.11},  {4, 1.77},
                                                        {8, 1.53}, {16, 1.37}, {64, 1.18}};
  for (const auto& [flows, drawn] : eight)
    EXPECT_NEAR(hashing_excess(8, flows), drawn, 0.02) << flows;
  EXPECT_NEAR(hashing_excess(16, 1), 3.07, 0.02);
  EXPECT_NEAR(hashing_excess(16, 4), 1.97, 0.02);
  EXPECT_NEAR(hashing_excess(16, 64), 1.23, 0.02);
  EXPECT_DOUBLE_EQ(hashing_excess(1, 4), 1);  // one path
  EXPECT_NEAR(hashing_excess(64, 1e6), 1, 0.01);
}

// What ecmp draws, hashed expects: every card of a leaf sends to the next leaf.
TEST(Hashed, IsTheMeanOverSeedsOfEcmp) {
  constexpr uint32_t kCards = 16, kSpines = 8;
  FabricSpec spec = spec_of(FabricShape::kLeafSpine);
  spec.ports_per_leaf = kCards;
  spec.spines = kSpines;
  spec.paths = PathChoice::kEcmp;
  constexpr int kSeeds = 300;
  double fullest = 0;
  for (spec.ecmp_seed = 0; spec.ecmp_seed < kSeeds; ++spec.ecmp_seed) {
    const Topology t = cluster(1, 1, 2 * kCards, spec);
    std::map<LinkId, int> flows;
    int most = 0;
    for (uint32_t d = 0; d < kCards; ++d) most = std::max(most, ++flows[t.route(d, kCards + d)[3]]);
    fullest += most;
  }
  EXPECT_NEAR(fullest / kSeeds / (kCards / kSpines), hashing_excess(kSpines, 2), 0.08);
}

TEST(Hashed, SlowsUplinksAlone) {
  FabricSpec spec = spec_of(FabricShape::kLeafSpine);
  spec.bytes_per_second = 1000;  // as the cards within a host
  spec.ports_per_leaf = 8;
  const Topology fluid = cluster(1, 1, 16, spec);
  spec.paths = PathChoice::kHashed;
  const auto uplink = [&](double queue_pairs) {
    spec.queue_pairs = queue_pairs;
    const Topology t = cluster(1, 1, 16, spec);
    EXPECT_EQ(t.links().size(), fluid.links().size());
    EXPECT_TRUE(t.host_copies());
    EXPECT_EQ(bottleneck_of(t, t.route(0, 7)), 1000);   // inside a leaf
    EXPECT_EQ(bottleneck_of(t, t.route(0, 15)), 1000);  // one card alone
    return t.link(t.route(0, 15)[3]).bytes_per_second;
  };
  EXPECT_EQ(fluid.link(fluid.route(0, 15)[3]).bytes_per_second, 8000);
  EXPECT_EQ(uplink(1), static_cast<int64_t>(8e3 / hashing_excess(8, 1)));
  EXPECT_LT(uplink(1), uplink(2));
  EXPECT_LT(uplink(16), 8000);
}

// The hash is written down: changing it would move every flow of every ecmp cluster.
TEST(Ecmp, HashIsStable) {
  EXPECT_EQ(stable_hash(0, 0), 0xa706dd2f4d197e6fu);
  EXPECT_EQ(stable_hash(1, 2), stable_hash(1, 2));
  EXPECT_NE(stable_hash(1, 2), stable_hash(2, 1));
}

TEST(Ecmp, FlowsMeetOnDifferentSpinesAndKeepTheirs) {
  FabricSpec spec = spec_of(FabricShape::kLeafSpine);
  spec.ports_per_leaf = 2;
  spec.spines = 4;
  spec.paths = PathChoice::kEcmp;
  const Topology t = cluster(8, 1, 4, spec), again = cluster(8, 1, 4, spec);
  spec.ecmp_seed = 1;
  const Topology other = cluster(8, 1, 4, spec);
  std::set<std::string> spines;
  bool moved = false;
  for (uint32_t a = 0; a < 8; ++a) {
    for (uint32_t b = 16; b < 24; ++b) {
      EXPECT_EQ(describe(t, a, b), describe(again, a, b));
      moved = moved || describe(t, a, b) != describe(other, a, b);
      spines.insert(t.vertex(t.link(t.route(a, b)[3]).to).name);
    }
  }
  EXPECT_EQ(spines.size(), 4u);
  EXPECT_TRUE(moved);
  EXPECT_NE(t.fingerprint(), other.fingerprint());
}

// a = 2 routers, p = 1 card, h = 1: three groups, every two joined once.
TEST(Dragonfly, PathsGoLocalGlobalLocal) {
  FabricSpec spec = spec_of(FabricShape::kDragonfly);
  spec.routers_per_group = 2;
  spec.ports_per_router = 1;
  spec.global_links_per_router = 1;
  spec.local_bytes_per_second = spec.global_bytes_per_second = 50;
  const Topology t = cluster(1, 1, 6, spec);
  EXPECT_EQ(t.links().size(), 6u * 6 + 2 * (3 + 3));
  EXPECT_EQ(
      describe(t, 0, 1),
      "0/gpu[0] > 0/pcie > 0/nic[0] > router[0.0] > router[0.1] > 1/nic[0] > 1/pcie > 1/gpu[0]");
  // Group 0's first channel leads to group 1, whose channel back belongs to its second router.
  EXPECT_EQ(
      describe(t, 0, 3),
      "0/gpu[0] > 0/pcie > 0/nic[0] > router[0.0] > router[1.1] > 3/nic[0] > 3/pcie > 3/gpu[0]");
  EXPECT_EQ(t.route(1, 2).size(), 3u + 3 + 3);
  EXPECT_THAT(refusal(1, 8, spec), HasSubstr("8 network cards make 4 groups"));
}

TEST(Torus, TakesTheShorterWayDimensionByDimension) {
  FabricSpec spec = spec_of(FabricShape::kTorus);
  spec.dimensions = {5, 4};
  spec.local_bytes_per_second = 50;
  const Topology t = cluster(1, 1, 20, spec);
  EXPECT_EQ(t.links().size(), 20u * 6 + 2 * (20 + 20));
  EXPECT_THAT(describe(t, 0, 4 * 4 + 3), HasSubstr("router[0.0] > router[4.0] > router[4.3]"));
  EXPECT_THAT(describe(t, 0, 2), HasSubstr("router[0.0] > router[0.1] > router[0.2]"));
  EXPECT_THAT(refusal(1, 19, spec), HasSubstr("a torus of 5 x 4 has 20 hosts, not 19; --hosts 20"));
}

TEST(MixedHosts, KeepTheirOwnPartsAndModels) {
  const Topology t = expect_ok(catalog_topology("mixed-h100-a100"));
  EXPECT_EQ(t.hosts(), 32u);
  EXPECT_EQ(t.device_model(0).name, "H100-SXM5-80GB");
  EXPECT_EQ(t.device_model(255).name, "A100-SXM4-80GB");
  EXPECT_THAT(
      describe(t, 3, 128 + 13),
      HasSubstr(
          "0/gpu[3] > 0/pcie[3] > 0/nic[3] > leaf[0] > spine > leaf[4] > 17/nic[5] > 17/port[5]"));
  EXPECT_EQ(expect_ok(catalog_topology("mixed-h100-a100", 32)).fingerprint(), t.fingerprint());
  const auto wrong = catalog_topology("mixed-h100-a100", 5);
  ASSERT_FALSE(wrong);
  EXPECT_THAT(to_string(wrong.error()), HasSubstr("has 32 hosts, not 5"));
}

// Of two cards that tie, device i takes number i mod 2; a nearer card wins over a rail.
TEST(NetworkCards, AreTakenByRailAndThenByNearness) {
  const Topology t = cluster(4, 2, 2, spec_of(FabricShape::kSwitch));
  EXPECT_THAT(describe(t, 2, 7), HasSubstr("0/nic[0] > net > 1/nic[1]"));
  EXPECT_THAT(describe(t, 3, 4), HasSubstr("0/nic[1] > net > 1/nic[0]"));
  const Topology dgx = expect_ok(catalog_topology("dgx-1-v100", 2));
  EXPECT_THAT(describe(dgx, 5, 8), HasSubstr("0/pcie_switch[2] > 0/nic[2] > ib_core > 1/nic[0]"));
}

TEST(Classes, AreFewForManyHosts) {
  const Topology t = expect_ok(catalog_topology("h100-rail-optimised", 512));
  // 27 parts of a host, a leaf for each of 8 rails, the spine.
  EXPECT_EQ(t.vertex_classes(), 27u + 8 + 1);
  EXPECT_EQ(t.link_classes(), 66u + 16 + 16);
  EXPECT_EQ(t.vertex_class(t.device(0)), t.vertex_class(t.device(8 * 511)));
  EXPECT_NE(t.vertex_class(t.device(0)), t.vertex_class(t.device(1)));
}

TEST(Scale, AHundredThousandDevicesAreMadeAndRouted) {
  const Topology t = expect_ok(catalog_topology("h100-fat-tree", 16'384));
  EXPECT_EQ(t.device_count(), 131'072u);
  EXPECT_EQ(t.route(0, 131'071).size(), 2u + 6 + 2);
}

// Full bisection for o = 1: N b / 2; N b / (2 o) in general.
TEST(Bisection, OfClosNetworksIsHalfOfTheCardsOverTheOversubscription) {
  EXPECT_DOUBLE_EQ(
      summarise(expect_ok(catalog_topology("h100-fat-tree", 1'024))).bisection_bytes_per_second,
      8'192 * 50e9 / 2);
  EXPECT_DOUBLE_EQ(
      summarise(expect_ok(catalog_topology("h100-rail-optimised", 64))).bisection_bytes_per_second,
      512 * 50e9 / 2);
  EXPECT_DOUBLE_EQ(
      summarise(expect_ok(catalog_topology("a100-leaf-spine-4to1", 16))).bisection_bytes_per_second,
      128 * 25e9 / 2 / 4);
}

// 2 N / k links cross the middle of the longest side k; c (g / 2)^2 global links between halves of
// the groups.
TEST(Bisection, OfTorusAndDragonflyFollowsTheirFormulas) {
  FabricSpec torus = spec_of(FabricShape::kTorus);
  torus.local_bytes_per_second = 7;
  torus.dimensions = {2, 4, 8};
  EXPECT_DOUBLE_EQ(summarise(cluster(1, 1, 64, torus)).bisection_bytes_per_second,
                   7 * 2.0 * 64 / 8);
  FabricSpec dragonfly = spec_of(FabricShape::kDragonfly);
  dragonfly.routers_per_group = 4;
  dragonfly.ports_per_router = 2;
  dragonfly.global_links_per_router = 3;
  dragonfly.local_bytes_per_second = 1000;
  dragonfly.global_bytes_per_second = 3;
  // 32 cards make 4 groups, 12 / 3 = 4 links between two.
  EXPECT_DOUBLE_EQ(summarise(cluster(1, 1, 32, dragonfly)).bisection_bytes_per_second,
                   3 * 4 * 2.0 * 2);
}

// Every even split of 8 GPUs: 4 NVLink ports of 300 GB/s, and PCIe beside them between the two
// halves of the sockets.
TEST(Bisection, OfOneHostTriesEverySplit) {
  const Summary s = summarise(expect_ok(catalog_topology("dgx-h100")));
  EXPECT_DOUBLE_EQ(s.bisection_bytes_per_second, 4 * 450e9 + 22e9);
  EXPECT_THAT(s.bisection_method, HasSubstr("exact"));
  EXPECT_DOUBLE_EQ(summarise(expect_ok(catalog_topology("mi300x"))).bisection_bytes_per_second,
                   16 * 64e9 + 24e9);
}

}  // namespace
}  // namespace orrery::topologies
