#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "fixture.h"
#include "topologies/topology.h"

namespace orrery::topologies {
namespace {

using namespace base::literals;
using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::Not;

/// Directed links by kind.
std::map<std::string, int> count_kinds(const Topology& t) {
  std::map<std::string, int> count;
  for (const Link& link : t.links()) ++count[link.kind];
  return count;
}

/// Capacities of all links of a kind; the test fails when they differ.
int64_t capacity(const Topology& t, std::string_view kind) {
  int64_t value = 0;
  for (const Link& link : t.links()) {
    if (link.kind != kind) continue;
    EXPECT_TRUE(value == 0 || value == link.bytes_per_second) << kind;
    value = link.bytes_per_second;
  }
  return value;
}

// 8 GPUs + NVSwitch + 8 ports + 4 PCIe switches + 2 CPUs + 8 cards = 31 vertices;
// duplex links: 8 NVLink + (8 + 8 + 8 + 4) PCIe + 1 between the CPUs = 37, directed 74; two hosts
// add 2 * 2 * 8 cables.
TEST(DgxA100, HasTheCountsAndCapacitiesOfTheDatasheet) {
  const Topology one = expect_ok(catalog_topology("dgx-a100"));
  EXPECT_EQ(one.name(), "dgx-a100");
  EXPECT_EQ(one.hosts(), 1u);
  EXPECT_EQ(one.device_count(), 8u);
  EXPECT_EQ(one.vertices().size(), 31u);
  EXPECT_EQ(one.links().size(), 74u);

  const Topology two = expect_ok(catalog_topology("dgx-a100", 2));
  EXPECT_EQ(two.device_count(), 16u);
  EXPECT_EQ(two.devices_per_host(), 8u);
  EXPECT_EQ(two.vertices().size(), 2u * 31 + 1);
  EXPECT_EQ(two.links().size(), 2u * 74 + 32);
  EXPECT_EQ(count_kinds(two),
            (std::map<std::string, int>{{"ib", 32}, {"nvlink", 32}, {"pcie", 112}, {"xgmi", 4}}));
  EXPECT_EQ(capacity(two, "nvlink"), 300'000'000'000);  // 600 GB/s both ways
  EXPECT_EQ(capacity(two, "ib"), 25'000'000'000);       // 200 Gb/s
  EXPECT_EQ(capacity(two, "pcie"), 31'508'000'000);

  const DeviceModel& gpu = two.device_model(9);
  EXPECT_EQ(gpu.name, "A100-SXM4-80GB");
  EXPECT_EQ(gpu.peak_bf16, 312_TFLOPS);
  EXPECT_EQ(gpu.peak_fp32, 19.5_TFLOPS);
  EXPECT_EQ(gpu.memory_bandwidth, 2039_GBps);
  EXPECT_EQ(gpu.memory_bytes, int64_t{80} << 30);
}

TEST(DgxA100, FortyGigabyteDevicesDifferInMemoryOnly) {
  const Topology t = expect_ok(catalog_topology("dgx-a100-40g"));
  EXPECT_EQ(t.device_model(0).memory_bytes, int64_t{40} << 30);
  EXPECT_EQ(t.device_model(0).memory_bandwidth, 1555_GBps);
  EXPECT_EQ(t.device_model(0).peak_bf16, 312_TFLOPS);
  EXPECT_EQ(t.links().size(), 74u);
}

// 8 + 1 + 8 + 2 + 8 = 27 vertices, 8 + 8 + 8 + 8 + 1 = 33 duplex links.
TEST(DgxH100, HasTheCountsAndCapacitiesOfTheDatasheet) {
  const Topology t = expect_ok(catalog_topology("dgx-h100", 2));
  EXPECT_EQ(t.vertices().size(), 2u * 27 + 1);
  EXPECT_EQ(t.links().size(), 2u * 66 + 32);
  EXPECT_EQ(capacity(t, "nvlink"), 450'000'000'000);
  EXPECT_EQ(capacity(t, "ib"), 50'000'000'000);
  EXPECT_EQ(t.device_model(0).peak_bf16, 989.4_TFLOPS);
  EXPECT_EQ(t.device_model(0).memory_bandwidth, 3350_GBps);
  EXPECT_EQ(t.device_model(0).memory_bytes, int64_t{80} << 30);
}

TEST(DgxH200, IsAnH100HostWithLargerMemory) {
  const Topology t = expect_ok(catalog_topology("dgx-h200"));
  EXPECT_EQ(t.links().size(), 66u);
  EXPECT_EQ(capacity(t, "nvlink"), 450'000'000'000);
  EXPECT_EQ(t.device_model(7).memory_bytes, int64_t{141} << 30);
  EXPECT_EQ(t.device_model(7).memory_bandwidth, 4800_GBps);
}

// 8 + 2 + 2 + 1 = 13 vertices, 8 + 2 + 1 + 1 = 12 duplex links.
TEST(RtxTitanPcie, HasTwoSocketsAndOneCard) {
  const Topology t = expect_ok(catalog_topology("rtx-titan-pcie", 2));
  EXPECT_EQ(t.vertices().size(), 2u * 13 + 1);
  EXPECT_EQ(t.links().size(), 2u * 24 + 4);
  EXPECT_EQ(capacity(t, "pcie"), 15'754'000'000);
  EXPECT_EQ(capacity(t, "upi"), 10'000'000'000);
  EXPECT_EQ(capacity(t, "ib"), 12'500'000'000);
  EXPECT_EQ(t.device_model(0).memory_bytes, int64_t{24} << 30);
  EXPECT_EQ(t.device_model(0).peak_bf16, 130.5_TFLOPS);
  EXPECT_THAT(t.device_model(0).source, HasSubstr("fp16 tensor peak"));
}

// Six NVLinks of 25 GB/s leave every GPU of the cube mesh; GPUs 0 and 5 have none between them.
TEST(Dgx1V100, IsAHybridCubeMesh) {
  const Topology t = expect_ok(catalog_topology("dgx-1-v100"));
  std::map<VertexId, int64_t> out;
  for (const Link& link : t.links()) {
    if (link.kind == "nvlink") out[link.from] += link.bytes_per_second;
  }
  ASSERT_EQ(out.size(), 8u);
  for (const auto& [gpu, rate] : out) EXPECT_EQ(rate, 150'000'000'000);
  EXPECT_EQ(describe(t, 0, 3), "0/gpu[0] > 0/gpu[3]");
  EXPECT_EQ(describe(t, 0, 5),
            "0/gpu[0] > 0/pcie_switch[0] > 0/cpu[0] > 0/cpu[1] > 0/pcie_switch[2] > 0/gpu[5]");
}

TEST(Mi300x, JoinsEveryTwoByOneLink) {
  const Topology t = expect_ok(catalog_topology("mi300x"));
  EXPECT_EQ(count_kinds(t).at("xgmi"), 8 * 7);
  EXPECT_EQ(capacity(t, "xgmi"), 64'000'000'000);
}

// What exports cut: links, or products.
TEST(HgxH800, IsAnH100WithEightOfEighteenLinks) {
  const Topology h100 = expect_ok(catalog_topology("dgx-h100")),
                 h800 = expect_ok(catalog_topology("hgx-h800")),
                 h20 = expect_ok(catalog_topology("hgx-h20")),
                 a800 = expect_ok(catalog_topology("dgx-a800"));
  EXPECT_EQ(capacity(h800, "nvlink"), 200'000'000'000);
  EXPECT_EQ(capacity(a800, "nvlink"), 200'000'000'000);
  EXPECT_EQ(capacity(h20, "nvlink"), capacity(h100, "nvlink"));
  EXPECT_EQ(h800.device_model(0).peak_bf16, h100.device_model(0).peak_bf16);
  EXPECT_EQ(h20.device_model(0).peak_bf16, 148_TFLOPS);
  EXPECT_EQ(h800.links().size(), h100.links().size());
}

// 24 ports of 25 GB/s: three to each of seven neighbours, three out.
TEST(Gaudi3, HasTwentyFourPorts) {
  const Topology t = expect_ok(catalog_topology("gaudi-3", 2));
  std::map<VertexId, int64_t> out;
  for (const Link& link : t.links()) {
    if (link.kind == "roce" && t.vertex(link.from).kind == VertexKind::kDevice)
      out[link.from] += link.bytes_per_second;
  }
  ASSERT_EQ(out.size(), 16u);
  for (const auto& [device, rate] : out) EXPECT_EQ(rate, 600'000'000'000);
  EXPECT_EQ(describe(t, 0, 9), "0/gpu[0] > 0/nic[0] > core > 1/nic[1] > 1/gpu[1]");
}

// Chips forward: (0, 0) to (1, 1) and to (3, 0) of the torus.
TEST(Trn2, IsATorusOfFourByFour) {
  const Topology t = expect_ok(catalog_topology("trn2"));
  EXPECT_EQ(t.device_count(), 16u);
  EXPECT_EQ(t.route(0, 5).size(), 4u);
  EXPECT_EQ(t.route(0, 12).size(), 3u);
  EXPECT_EQ(bottleneck_of(t, t.route(0, 12)), 160'000'000'000);
}

// All links of a chip leave it; each neighbour takes one.
TEST(Tpu, ChipsAreRoutersOfATorus) {
  for (const auto& [name, chips, links] :
       {std::tuple("tpu-v5p-8x8x8", 512u, 6), std::tuple("tpu-v6e-16x16", 256u, 4)}) {
    const Topology t = expect_ok(catalog_topology(name));
    EXPECT_EQ(t.device_count(), chips);
    EXPECT_EQ(t.devices_per_host(), 1u);
    EXPECT_EQ(bottleneck_of(t, t.route(0, 1)), 100'000'000'000);
    const VertexId port = t.link(t.route(0, 1).front()).to;
    EXPECT_EQ(t.link(t.route(0, 1).front()).bytes_per_second, links * 100'000'000'000);
    EXPECT_EQ(t.vertex(port).kind, VertexKind::kNic);
  }
}

TEST(Nvl72, IsOneNvlinkDomainOfARack) {
  for (const char* name : {"gb200-nvl72", "gb300-nvl72"}) {
    const Topology t = expect_ok(catalog_topology(name, 2));
    EXPECT_EQ(t.devices_per_host(), 72u);
    EXPECT_EQ(capacity(t, "nvlink"), 900'000'000'000);
    EXPECT_EQ(capacity(t, "ib"),
              name == std::string_view("gb200-nvl72") ? 50'000'000'000 : 100'000'000'000);
    EXPECT_EQ(describe(t, 0, 71), "0/gpu[0] > 0/nvswitch > 0/gpu[71]");
    EXPECT_EQ(describe(t, 5, 72 + 9),
              "0/gpu[5] > 0/port[5] > 0/nic[5] > ib_core > 1/nic[9] > 1/port[9] > 1/gpu[9]");
  }
}

// NVLink wins over PCIe: two hops against four and more.
TEST(Catalog, NeighboursOnNvSwitchTalkThroughIt) {
  const Topology t = expect_ok(catalog_topology("dgx-a100"));
  EXPECT_EQ(describe(t, 0, 1), "0/gpu[0] > 0/nvswitch > 0/gpu[1]");
  EXPECT_EQ(describe(t, 7, 2), "0/gpu[7] > 0/nvswitch > 0/gpu[2]");
  EXPECT_DOUBLE_EQ(latency_of(t, t.route(0, 1)).raw(), 0.6e-6);
}

// Every GPU keeps to its own card. Latency: 4 PCIe hops of 0.5 us and 2 cables of 0.35 us = 2.7 us.
TEST(Catalog, HostsTalkThroughTheCardOfEachGpu) {
  for (const char* name : {"dgx-a100", "dgx-h100"}) {
    const Topology t = expect_ok(catalog_topology(name, 2));
    const std::string port = name == std::string_view("dgx-a100") ? "port" : "pcie";
    EXPECT_EQ(describe(t, 3, 13), "0/gpu[3] > 0/" + port +
                                      "[3] > 0/nic[3] > ib_core > 1/nic[5] > 1/" + port +
                                      "[5] > 1/gpu[5]");
    EXPECT_NEAR(latency_of(t, t.route(3, 13)).raw(), 2.7e-6, 1e-15);
  }
  const Topology t = expect_ok(catalog_topology("dgx-a100", 2));
  EXPECT_EQ(bottleneck_of(t, t.route(3, 13)), 25'000'000'000);
}

TEST(Catalog, TitanRoutesCrossSocketsOnlyWhenTheyMust) {
  const Topology t = expect_ok(catalog_topology("rtx-titan-pcie", 2));
  EXPECT_EQ(describe(t, 0, 3), "0/gpu[0] > 0/pcie_switch[0] > 0/gpu[3]");
  EXPECT_EQ(describe(t, 3, 4),
            "0/gpu[3] > 0/pcie_switch[0] > 0/cpu[0] > 0/cpu[1] > 0/pcie_switch[1] > 0/gpu[4]");
  EXPECT_EQ(
      describe(t, 7, 8),
      "0/gpu[7] > 0/pcie_switch[1] > 0/cpu[1] > 0/cpu[0] > 0/nic > ib_core > 1/nic > 1/cpu[0] > "
      "1/pcie_switch[0] > 1/gpu[0]");
  EXPECT_EQ(bottleneck_of(t, t.route(7, 8)), 10'000'000'000);
  EXPECT_EQ(bottleneck_of(t, t.route(0, 8)), 12'500'000'000);
}

TEST(Catalog, DevicesReachTheMemoryOfTheirHost) {
  const Topology t = expect_ok(catalog_topology("dgx-a100"));
  const auto bridge = std::find_if(t.vertices().begin(), t.vertices().end(), [](const Vertex& v) {
    return v.kind == VertexKind::kHostBridge;
  });
  const VertexId cpu(static_cast<uint32_t>(bridge - t.vertices().begin()));
  EXPECT_EQ(describe(t, t.path(t.device(1), cpu)),
            "0/gpu[1] > 0/port[1] > 0/pcie_switch[0] > 0/cpu[0]");
  EXPECT_EQ(t.path(cpu, t.device(1)).size(), 3u);
}

// 2048 * 27 + 1 vertices, 2048 * (66 + 16) links.
TEST(Catalog, ThousandsOfHostsAreNoProblem) {
  const Topology t = expect_ok(catalog_topology("dgx-h100", 2048));
  EXPECT_EQ(t.device_count(), 16'384u);
  EXPECT_EQ(t.vertices().size(), 55'297u);
  EXPECT_EQ(t.links().size(), 167'936u);
  EXPECT_EQ(describe(t, 16'383, 4),
            "2047/gpu[7] > 2047/pcie[7] > 2047/nic[7] > ib_core > 0/nic[4] > 0/pcie[4] > 0/gpu[4]");
}

TEST(Catalog, ListsEveryEntryWithItsSource) {
  const std::vector<CatalogEntry> entries = list_catalog();
  std::vector<std::string> names;
  for (const CatalogEntry& e : entries) names.push_back(e.name);
  EXPECT_THAT(
      names, ElementsAre("a100-leaf-spine-4to1", "dgx-1-v100", "dgx-2-v100", "dgx-a100",
                         "dgx-a100-40g", "dgx-a800", "dgx-b200", "dgx-b300", "dgx-h100", "dgx-h200",
                         "gaudi-3", "gb200-nvl72", "gb200-nvl72-64", "gb300-nvl72",
                         "gb300-nvl72-64", "grand-teton-h100", "h100-dragonfly", "h100-fat-tree",
                         "h100-rail-optimised", "h100-torus-4x4x4", "hgx-h20", "hgx-h800", "local",
                         "mi300x", "mi325x", "mi355x", "mixed-h100-a100", "rtx-titan-pcie",
                         "tpu-v5p-8x8x8", "tpu-v6e-16x16", "trn2", "vr-nvl72"));
  EXPECT_THAT(entries, Each(Field(&CatalogEntry::source, Not(""))));
  EXPECT_THAT(entries, Each(Field(&CatalogEntry::description, Not(HasSubstr("cannot be read")))));
  for (const CatalogEntry& e : entries)
    EXPECT_EQ(expect_ok(catalog_topology(e.name)).name(), e.name);
}

TEST(Catalog, UnknownNameIsReportedWithTheNearest) {
  const auto t = catalog_topology("dgx-a10");
  ASSERT_FALSE(t);
  EXPECT_EQ(to_string(t.error()),
            "error[E0007]: no topology 'dgx-a10' in the catalog; did you mean 'dgx-a100'?");
}

TEST(Catalog, SourceNotesNameEveryGroup) {
  const Topology t = expect_ok(catalog_topology("dgx-h100"));
  // one model, the host, its power, six groups of links, the fabric
  ASSERT_EQ(t.source_notes().size(), 10u);
  EXPECT_THAT(t.source_notes()[0], HasSubstr("device model H100-SXM5-80GB: NVIDIA H100 datasheet"));
}

// 16 of 18 trays: each device keeps its 18 lanes and its own card.
TEST(Catalog, ARackMayGiveAPartOfItsDevices) {
  const Topology rack = expect_ok(catalog_topology("gb200-nvl72", 2)),
                 part = expect_ok(catalog_topology("gb200-nvl72-64", 2));
  EXPECT_EQ(rack.devices_per_host(), 72U);
  EXPECT_EQ(part.devices_per_host(), 64U);
  EXPECT_EQ(part.device_count(), 128U);
  EXPECT_EQ(part.device_models().front().name, rack.device_models().front().name);
  const auto links_of = [](const Topology& t) {
    return static_cast<double>(t.links().size()) / t.device_count();
  };
  EXPECT_NEAR(links_of(part), links_of(rack), 1e-9);
}

TEST(Catalog, AHostGivesNoMoreDevicesThanItHas) {
  const std::string text =
      "schema: orrery.topology/1\nname: part\ndescription: of a host\n"
      "host: {type: dgx-h100, devices: 9}\n";
  const auto nine = parse_topology(text, "part.yaml");
  ASSERT_FALSE(nine.has_value());
  EXPECT_NE(base::to_string(nine.error()).find("part.yaml:4:14: error"), std::string::npos)
      << base::to_string(nine.error());
  EXPECT_NE(base::to_string(nine.error()).find("'dgx-h100' has 8 devices, not 9"),
            std::string::npos);
  const Topology four =
      expect_ok(parse_topology(std::string(text).replace(text.find("9}"), 1, "4"), "part.yaml"));
  EXPECT_EQ(four.device_count(), 4U);
}

}  // namespace
}  // namespace orrery::topologies
