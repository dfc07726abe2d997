#include <array>

#include "topologies/builder.h"

#include <gmock/gmock.h>

#include "fixture.h"

namespace orrery::topologies {
namespace {

using namespace base::literals;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(TopologyBuilder, TwoDevicesAndALinkMakeATopology) {
  TopologyBuilder b("pair");
  const uint32_t model = b.add_model(plain_model());
  const VertexId x = b.add_device("x", 0, model);
  const VertexId y = b.add_device("y", 0, model);
  b.add_duplex(x, y, 25'000'000'000, 1.0_us, "nvlink");
  const Topology t = expect_ok(std::move(b).build());
  EXPECT_EQ(t.device_count(), 2u);
  EXPECT_EQ(describe(t, 0, 1), "0/x > 0/y");
  EXPECT_THAT(t.route(1, 1), IsEmpty());
  EXPECT_EQ(t.host_copies(), std::nullopt);
}

TEST(TopologyBuilder, RanksAreHostMajorWhateverTheOrderOfAddition) {
  TopologyBuilder b("mixed");
  const uint32_t model = b.add_model(plain_model());
  const VertexId fabric = b.add_vertex(VertexKind::kSwitch, "core", kNoHost);
  for (const auto& [name, host] : {std::pair{"b0", 1u}, {"a0", 0u}, {"b1", 1u}, {"a1", 0u}}) {
    b.add_duplex(b.add_device(name, host, model), fabric, 1'000, 1_us, "wire");
  }
  const Topology t = expect_ok(std::move(b).build());
  std::string order;
  for (uint32_t rank = 0; rank < 4; ++rank) order += t.vertex(t.device(rank)).name + " ";
  EXPECT_EQ(order, "a0 a1 b0 b1 ");
  EXPECT_EQ(t.host_of(1), 0u);
  EXPECT_EQ(t.host_of(2), 1u);
  EXPECT_TRUE(t.same_host(2, 3));
  EXPECT_FALSE(t.same_host(1, 2));
}

TEST(TopologyBuilder, RefusesATopologyWithoutDevices) {
  const auto t = TopologyBuilder("empty").build();
  ASSERT_FALSE(t);
  EXPECT_EQ(to_string(t.error()), "error[E0006]: topology 'empty' has no device");
}

TEST(TopologyBuilder, RefusesUnequalHosts) {
  TopologyBuilder b("uneven");
  const uint32_t model = b.add_model(plain_model());
  b.add_device("x", 0, model);
  b.add_device("y", 0, model);
  b.add_device("z", 1, model);
  const auto t = std::move(b).build();
  ASSERT_FALSE(t);
  EXPECT_THAT(to_string(t.error()), HasSubstr("host 1 has 1 devices and host 0 has 2"));
}

TEST(TopologyBuilder, RefusesDevicesThatCannotReachEachOther) {
  TopologyBuilder b("broken");
  const uint32_t model = b.add_model(plain_model());
  const VertexId x = b.add_device("x", 0, model);
  const VertexId y = b.add_device("y", 0, model);
  const VertexId z = b.add_device("z", 0, model);
  b.add_duplex(x, y, 1, 1_us, "wire");
  b.add_duplex(y, z, 1, 1_us, "wire");
  const auto t = std::move(b).build();
  ASSERT_FALSE(t);
  EXPECT_THAT(to_string(t.error()),
              HasSubstr("device x of host 0 cannot reach device z of host 0"));
}

/// Two devices under one switch, one card on it.
TopologyBuilder small_host() {
  TopologyBuilder b("small");
  const uint32_t model = b.add_model(plain_model());
  const VertexId x = b.add_device("x", 0, model);
  const VertexId y = b.add_device("y", 0, model);
  const VertexId s = b.add_vertex(VertexKind::kSwitch, "s", 0);
  const VertexId n = b.add_vertex(VertexKind::kNic, "n", 0);
  for (const VertexId v : {x, y, n}) b.add_duplex(v, s, 10, 1_us, "pcie");
  return b;
}

const FabricSpec kFabric{.name = "core", .kind = "ib", .bytes_per_second = 5, .latency = 2.0_us};

TEST(TopologyBuilder, CopiesAreBlocksOfVerticesAndLinks) {
  const Topology t = expect_ok(small_host().build_cluster(std::array{3U}, kFabric));
  ASSERT_TRUE(t.host_copies());
  ASSERT_EQ(t.host_copies()->levels.size(), 1u);
  EXPECT_EQ(t.host_copies()->levels[0].links, 8u);  // 3 duplex links and the card's cable
  ASSERT_EQ(t.vertices().size(), 13u);
  ASSERT_EQ(t.links().size(), 24u);
  EXPECT_EQ(t.vertices().back().name, "core");
  EXPECT_EQ(t.vertices().back().host, kNoHost);
  for (uint32_t l = 0; l < 24; ++l) {
    const Link& link = t.link(LinkId(l));
    for (const VertexId end : {link.from, link.to}) {
      const uint32_t host = t.vertex(end).host;
      EXPECT_TRUE(host == l / 8 || host == kNoHost) << l;
    }
  }
}

TEST(TopologyBuilder, CopiedRoutesLandInTheRightHosts) {
  const Topology t = expect_ok(small_host().build_cluster(std::array{3U}, kFabric));
  EXPECT_EQ(describe(t, 2, 3), "1/x > 1/s > 1/y");
  EXPECT_EQ(describe(t, 1, 4), "0/y > 0/s > 0/n > core > 2/n > 2/s > 2/x");
  EXPECT_EQ(describe(t, 4, 1), "2/x > 2/s > 2/n > core > 0/n > 0/s > 0/y");
  EXPECT_EQ(describe(t, t.path(VertexId(12), t.device(5))), "core > 2/n > 2/s > 2/y");
  EXPECT_EQ(describe(t, t.path(t.device(3), VertexId(12))), "1/y > 1/s > 1/n > core");
}

TEST(TopologyBuilder, AHostAloneHasNoFabric) {
  const Topology t = expect_ok(small_host().build_cluster(std::array{1U}, kFabric));
  EXPECT_EQ(t.vertices().size(), 4u);
  EXPECT_EQ(t.links().size(), 6u);
}

TEST(Topology, CopiesAndMovesKeepTheirRoutes) {
  Topology a = expect_ok(small_host().build_cluster(std::array{2U}, kFabric));
  const Topology b = a;
  const auto before = a.route(0, 3);
  const Topology c = std::move(a);
  EXPECT_EQ(before.data(), c.route(0, 3).data());
  EXPECT_EQ(describe(b, 0, 3), describe(c, 0, 3));
  EXPECT_EQ(b.fingerprint(), c.fingerprint());
}

TEST(Topology, FingerprintSeesNumbersAndNotNotes) {
  const std::string plain =
      expect_ok(small_host().build_cluster(std::array{2U}, kFabric)).fingerprint();
  TopologyBuilder noted = small_host();
  noted.add_source_note("a datasheet");
  EXPECT_EQ(expect_ok(std::move(noted).build_cluster(std::array{2U}, kFabric)).fingerprint(),
            plain);
  FabricSpec wider = kFabric;
  ++wider.bytes_per_second;
  EXPECT_NE(expect_ok(small_host().build_cluster(std::array{2U}, wider)).fingerprint(), plain);
  EXPECT_NE(expect_ok(small_host().build_cluster(std::array{3U}, kFabric)).fingerprint(), plain);
}

TEST(Topology, WithLinkRatesScalesOneKindOrAllAndKeepsTheRest) {
  TopologyBuilder b("triple");
  const uint32_t model = b.add_model(plain_model());
  const VertexId x = b.add_device("x", 0, model), y = b.add_device("y", 0, model),
                 z = b.add_device("z", 0, model);
  b.add_duplex(x, y, 1'001, 1_us, "nvlink");
  b.add_duplex(y, z, 1'001, 1_us, "pcie");
  b.add_duplex(x, z, 1, 1_us, "wire");
  const Topology t = expect_ok(std::move(b).build());
  const Topology all = t.with_link_rates(500'000), one = t.with_link_rates(1'100'000, "pcie");
  EXPECT_EQ(all.link(LinkId(0)).bytes_per_second, 500);
  EXPECT_EQ(all.link(LinkId(4)).bytes_per_second, 1);  // never nothing
  EXPECT_EQ(one.link(LinkId(0)).bytes_per_second, 1'001);
  EXPECT_EQ(one.link(LinkId(2)).bytes_per_second, 1'101);
  EXPECT_EQ(one.link(LinkId(2)).latency, t.link(LinkId(2)).latency);
  EXPECT_EQ(describe(one, 0, 1), describe(t, 0, 1));
  EXPECT_NE(all.fingerprint(), t.fingerprint());
  EXPECT_NE(one.fingerprint(), all.fingerprint());
}

TEST(Topology, WithLevelRatesTellsLinksInHostsFromThoseOfTheFabric) {
  const Topology t = expect_ok(small_host().build_cluster(std::array{2U}, kFabric));
  const Topology slower = t.with_level_rates(500'000, 250'000);
  for (std::size_t i = 0; i < t.links().size(); ++i) {
    const Link& link = t.links()[i];
    const bool fabric = t.vertex(link.from).host == kNoHost || t.vertex(link.to).host == kNoHost;
    EXPECT_EQ(slower.links()[i].bytes_per_second, link.bytes_per_second / (fabric ? 4 : 2)) << i;
  }
  EXPECT_EQ(describe(slower, 0, t.device_count() - 1), describe(t, 0, t.device_count() - 1));
  EXPECT_NE(slower.fingerprint(), t.fingerprint());
  EXPECT_NE(slower.fingerprint(), t.with_level_rates(250'000, 500'000).fingerprint());
}

}  // namespace
}  // namespace orrery::topologies
