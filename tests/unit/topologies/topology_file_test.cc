// The schema of README.md: what a good file gives, and where each kind of fault is reported.
#include "topologies/import/topology_file.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "base/text.h"
#include "fixture.h"

namespace orrery::topologies {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Lines are numbered by the tests below; keep them.
constexpr std::string_view kGood = R"(schema: orrery.topology/1
name: net
description: two devices and a card
device_models:
  - name: D1
    peak_fp32: 10 TFLOP/s
    peak_bf16: 100 TFLOP/s
    memory_bandwidth: 1 TB/s
    memory: 16 GiB
    launch_overhead: 5 us
    source: datasheet
host:
  source: drawing
  devices:
    - {name: gpu, model: D1, count: 2}
  switches:
    - {name: hub}
  nics:
    - {name: nic}
  links:
    - from: gpu
      to: hub
      kind: nvlink
      count: 3
      bandwidth_per_direction: 25 GB/s
      latency: 1 us
      source: datasheet
    - from: hub
      to: nic
      kind: pcie
      bandwidth_per_direction: 16 GB/s
      latency: 1 us
      source: datasheet
fabric:
  name: core
  kind: ib
  bandwidth_per_direction: 100 Gb/s
  latency: 2 us
  source: datasheet
)";

/// kGood with one line (1-based) replaced; an empty replacement deletes it.
std::string with_line(size_t number, std::string_view replacement) {
  std::vector<std::string> lines = base::split(kGood, '\n');
  if (replacement.empty()) {
    lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(number - 1));
  } else {
    lines.at(number - 1) = replacement;
  }
  return base::join(lines, "\n");
}

std::vector<std::string> faults_of(std::string_view text, uint32_t hosts = 1) {
  const auto t = parse_topology(text, "net.yaml", hosts);
  std::vector<std::string> faults;
  if (!t) {
    for (const base::Diagnostic& d : t.error()) faults.push_back(to_string(d));
  }
  return faults;
}

TEST(TopologyFile, ReadsAGoodFile) {
  const Topology t = expect_ok(parse_topology(kGood, "net.yaml", 2));
  EXPECT_EQ(t.device_count(), 4u);
  EXPECT_EQ(t.vertices().size(), 9u);
  EXPECT_EQ(describe(t, 0, 3), "0/gpu[0] > 0/hub > 0/nic > core > 1/nic > 1/hub > 1/gpu[1]");
  EXPECT_EQ(t.link(t.route(0, 1)[0]).bytes_per_second, 75'000'000'000);  // 3 lanes
  EXPECT_EQ(t.link(t.route(0, 2)[2]).bytes_per_second, 12'500'000'000);
  EXPECT_THAT(std::vector<std::string>(t.source_notes().begin(), t.source_notes().end()),
              ElementsAre("device model D1: datasheet", "host: drawing", "nvlink links: datasheet",
                          "pcie links: datasheet", "fabric: datasheet"));
}

TEST(TopologyFile, UnknownKeyIsReportedWithTheNearest) {
  EXPECT_THAT(
      faults_of(with_line(26, "      latncy: 1 us")),
      ElementsAre(
          "net.yaml:21:7: error[E0003]: link has no 'latency'",
          "net.yaml:26:7: error[E0002]: unknown key 'latncy' in link; did you mean 'latency'?"));
}

TEST(TopologyFile, DuplicateKeyIsReported) {
  const auto faults = faults_of(with_line(23, "      kind: nvlink\n      kind: nvlink"));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_THAT(faults[0], HasSubstr("net.yaml:24:7: error[E0012]"));
}

TEST(TopologyFile, SourceIsCompulsoryForEveryGroupOfNumbers) {
  EXPECT_THAT(faults_of(with_line(11, "")),
              ElementsAre("net.yaml:5:5: error[E0003]: device model has no 'source'"));
  EXPECT_THAT(faults_of(with_line(13, "")),
              ElementsAre("net.yaml:13:3: error[E0003]: host has no 'source'"));
  EXPECT_THAT(faults_of(with_line(27, "")),
              ElementsAre("net.yaml:21:7: error[E0003]: link has no 'source'"));
  EXPECT_THAT(faults_of(with_line(39, "")),
              ElementsAre("net.yaml:35:3: error[E0003]: fabric has no 'source'"));
}

TEST(TopologyFile, UnitsAreCompulsory) {
  const auto faults = faults_of(with_line(25, "      bandwidth_per_direction: 25"));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_THAT(faults[0], HasSubstr("net.yaml:25:32: error[E0004]"));
  EXPECT_THAT(faults[0], HasSubstr("GB/s"));
}

TEST(TopologyFile, UnitsMustHaveTheRightDimension) {
  const auto faults = faults_of(with_line(10, "    launch_overhead: 5 GB"));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_THAT(faults[0], HasSubstr("net.yaml:10:22: error[E0004]"));
}

TEST(TopologyFile, UnknownModelIsReportedWithTheNearest) {
  EXPECT_THAT(faults_of(with_line(15, "    - {name: gpu, model: D2, count: 2}")),
              ElementsAre("net.yaml:15:26: error[E0007]: no device model 'D2' in device_models; "
                          "did you mean 'D1'?"));
}

TEST(TopologyFile, UnknownPartIsReportedWithTheNearest) {
  EXPECT_THAT(
      faults_of(with_line(22, "      to: hubb")),
      ElementsAre("net.yaml:22:11: error[E0007]: host has no part 'hubb'; did you mean 'hub'?"));
}

TEST(TopologyFile, IndexBeyondTheGroupIsReported) {
  EXPECT_THAT(faults_of(with_line(21, "    - from: gpu[1-2]")),
              ElementsAre("net.yaml:21:13: error[E0005]: 'gpu[1-2]' is beyond the 2 of part 'gpu' "
                          "(indices 0 .. 1)"));
}

TEST(TopologyFile, MalformedSelectorIsReportedWithExamples) {
  for (const char* selector :
       {"gpu[", "gpu[]", "gpu[1", "gpu[2-1]", "'[0]'", "gpu[-1]", "gpu[a]"}) {
    const auto faults = faults_of(with_line(21, std::string("    - from: ") + selector));
    ASSERT_EQ(faults.size(), 1u) << selector;
    EXPECT_THAT(faults[0], HasSubstr("net.yaml:21:13: error[E0014]"));
    EXPECT_THAT(faults[0], HasSubstr("write 'gpu' (all), 'gpu[3]' or 'gpu[0-3]'"));
  }
}

TEST(TopologyFile, PairingByIndexNeedsEqualNumbers) {
  EXPECT_THAT(faults_of(with_line(22, "      to: hub\n      pairing: by_index")),
              ElementsAre("net.yaml:23:16: error[E0006]: pairing by_index joins 2 parts to 1: the "
                          "numbers must be equal"));
}

TEST(TopologyFile, UnknownPairingIsReported) {
  const auto faults = faults_of(with_line(22, "      to: hub\n      pairing: by_indx"));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_THAT(faults[0], HasSubstr("net.yaml:23:16: error[E0014]"));
  EXPECT_THAT(faults[0], HasSubstr("did you mean 'by_index'?"));
}

TEST(TopologyFile, ALinkFromAPartToItselfIsReported) {
  const auto faults = faults_of(with_line(28, "    - from: nic"));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0],
            "net.yaml:29:11: error[E0006]: link joins a part to itself and nothing else");
}

TEST(TopologyFile, NamesAreUsedOnce) {
  EXPECT_THAT(faults_of(with_line(19, "    - {name: hub}\n    - {name: nic}")),
              ElementsAre("net.yaml:19:14: error[E0006]: part 'hub' is defined twice"));
}

TEST(TopologyFile, NamesAreOneWord) {
  EXPECT_THAT(faults_of(with_line(17, "    - {name: hub}\n    - {name: 'h u'}")),
              ElementsAre("net.yaml:18:14: error[E0014]: part name 'h u' has characters other than "
                          "letters, digits, '_' "
                          "and '-'"));
}

TEST(TopologyFile, CountsHaveBounds) {
  const auto faults = faults_of(with_line(15, "    - {name: gpu, model: D1, count: 0}"));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_THAT(faults[0], HasSubstr("net.yaml:15:37: error[E0005]"));
}

TEST(TopologyFile, QuantitiesHaveBounds) {
  EXPECT_THAT(
      faults_of(with_line(26, "      latency: 1 h")),
      ElementsAre("net.yaml:26:16: error[E0005]: latency of 3600 s is more than one second"));
  EXPECT_THAT(faults_of(with_line(9, "    memory: 0 GiB")),
              ElementsAre("net.yaml:9:13: error[E0005]: memory of 0 B is outside 1 B .. 9 PB"));
  EXPECT_THAT(faults_of(with_line(9, "    memory: 16")),
              ElementsAre(HasSubstr("net.yaml:9:13: error[E0004]")));
  EXPECT_THAT(faults_of(with_line(9, "")),
              ElementsAre("net.yaml:5:5: error[E0003]: device model has no 'memory'"));
  EXPECT_THAT(faults_of(with_line(9, "    memory: 1e30 GiB")),
              ElementsAre(HasSubstr("net.yaml:9:13: error[E0005]")));
  EXPECT_THAT(faults_of(with_line(25, "      bandwidth_per_direction: 0.1 B/s")),
              ElementsAre(HasSubstr("net.yaml:25:32: error[E0005]")));
}

TEST(TopologyFile, OtherSchemasAreRefused) {
  EXPECT_THAT(
      faults_of(with_line(1, "schema: orrery.topology/2")),
      ElementsAre(
          "net.yaml:1:9: error[E0011]: schema 'orrery.topology/2' is not 'orrery.topology/1'"));
}

TEST(TopologyFile, AHostWithoutDevicesIsReported) {
  std::string text = with_line(15, "");
  text.replace(text.find("  devices:"), 10, "  devices: []");
  EXPECT_THAT(faults_of(text),
              testing::Contains("net.yaml:14:12: error[E0006]: host has no device"));
}

TEST(TopologyFile, AnUnreachableDeviceIsReportedAtTheHost) {
  const auto faults = faults_of(with_line(21, "    - from: gpu[0]"));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0],
            "net.yaml:13:3: error[E0006]: device gpu[0] of host 0 cannot reach device gpu[1] of "
            "host 0; devices do not "
            "forward: join them by links or switches");
}

TEST(TopologyFile, MoreHostsNeedAFabric) {
  const std::string text(kGood.substr(0, kGood.find("fabric:")));
  EXPECT_THAT(faults_of(text, 1), ElementsAre());
  EXPECT_THAT(
      faults_of(text, 2),
      ElementsAre("net.yaml:1:1: error[E0006]: topology 'net' has no fabric to join 2 hosts; "
                  "add a 'fabric:' section, or use one host"));
}

TEST(TopologyFile, AFabricNeedsNetworkCards) {
  const std::string text = with_line(18, "  host_bridges:");
  EXPECT_THAT(
      faults_of(text),
      ElementsAre("net.yaml:35:3: error[E0006]: the fabric has no network card to join; list the "
                  "host's network cards under 'nics:'"));
}

// Ethernet hashes unless the file says otherwise; InfiniBand does not.
TEST(TopologyFile, PathsAreThoseThatAFabricOfItsKindHas) {
  const auto spec = [](std::string_view kind, std::string_view more) {
    std::string text(kGood);
    text.replace(text.find("kind: ib"), 8, "kind: " + std::string(kind));
    text +=
        "  shape: leaf_spine\n  ports_per_leaf: 1\n  switch_latency: 1 us\n" + std::string(more);
    return expect_ok(parse_topology(text, "net.yaml", 2)).cluster()->spec;
  };
  EXPECT_EQ(spec("ib", "").paths, PathChoice::kFluid);
  EXPECT_EQ(spec("roce", "").paths, PathChoice::kHashed);
  EXPECT_EQ(spec("roce", "").queue_pairs, 2);
  EXPECT_EQ(spec("roce", "  paths: fluid\n").paths, PathChoice::kFluid);
  EXPECT_EQ(spec("ib", "  paths: hashed\n  queue_pairs: 16\n").queue_pairs, 16);
  EXPECT_THAT(faults_of(std::string(kGood) + "  paths: hashed\n", 2),
              ElementsAre(HasSubstr("unknown key 'paths' in fabric")));
}

TEST(TopologyFile, NumberOfHostsHasBounds) {
  EXPECT_THAT(faults_of(kGood, 0), ElementsAre("error[E0005]: 0 hosts: expected 1 .. 1048576"));
  EXPECT_THAT(faults_of(kGood, 1'048'577),
              ElementsAre("error[E0005]: 1048577 hosts: expected 1 .. 1048576"));
}

TEST(TopologyFile, EveryFaultIsReportedAtOnce) {
  std::string text = with_line(22, "      to: hubb");
  text.replace(text.find("16 GB/s"), 7, "16 GHz");
  text.replace(text.find("kind: ib"), 8, "kindd: ib");
  const auto faults = faults_of(text);
  // part, unit, missing key, unknown key
  EXPECT_EQ(faults.size(), 4u) << testing::PrintToString(faults);
}

TEST(TopologyFile, AMissingFileIsReported) {
  const auto t = load_topology("no/such/net.yaml");
  ASSERT_FALSE(t);
  EXPECT_EQ(t.error().front().code, base::ErrorCode::kNotFound);
}

TEST(TopologyFile, AMeshJoinsEachPairOnce) {
  std::string text = with_line(22, "      to: gpu");
  text.replace(text.find("- from: hub"), 11, "- from: gpu");
  const Topology t = expect_ok(parse_topology(text, "net.yaml"));
  EXPECT_EQ(t.links().size(), 2u + 4);  // gpu[0]-gpu[1], and both to the card
  EXPECT_EQ(describe(t, 0, 1), "0/gpu[0] > 0/gpu[1]");
}

constexpr std::string_view kPowered = R"(schema: orrery.topology/1
name: warm
description: two kinds of hosts
device_models:
  - name: D1
    peak_fp32: 10 TFLOP/s
    peak_bf16: 100 TFLOP/s
    memory_bandwidth: 1 TB/s
    memory: 16 GiB
    launch_overhead: 5 us
    power: 700 W
    idle_power: 70 W
    source: datasheet
host:
  source: drawing
  host_power: 2.4 kW
  power_source: a meter
  devices:
    - {name: gpu, model: D1}
  nics:
    - {name: nic}
  links:
    - {from: gpu, to: nic, kind: pcie, bandwidth_per_direction: 16 GB/s, latency: 1 us, source: x}
fabric:
  name: core
  kind: ib
  bandwidth_per_direction: 100 Gb/s
  latency: 2 us
  device_power: 53 W
  source: datasheet
)";

TEST(TopologyPower, EveryHostDevicesAndSwitchesHaveWhatTheFileSays) {
  const Topology one = expect_ok(parse_topology(kPowered, "warm.yaml"));
  EXPECT_EQ(one.device_model(0).idle_power, base::Watts(70));
  EXPECT_EQ(one.host_power(0), base::Watts(2400));
  EXPECT_EQ(one.fabric_power_per_device(), base::Watts());  // no switch joins one host
  const Topology three = expect_ok(parse_topology(kPowered, "warm.yaml", 3));
  for (uint32_t host = 0; host < 3; ++host) EXPECT_EQ(three.host_power(host), base::Watts(2400));
  EXPECT_EQ(three.fabric_power_per_device(), base::Watts(53));
  const Topology plain = expect_ok(parse_topology(kGood, "net.yaml", 2));
  EXPECT_EQ(plain.host_power(1), base::Watts());
}

TEST(TopologyPower, MixedHostsKeepTheirOwn) {
  const Topology mixed = expect_ok(catalog_topology("mixed-h100-a100"));
  EXPECT_EQ(mixed.host_power(15), base::Watts(2400));
  EXPECT_EQ(mixed.host_power(16), base::Watts());  // no source says what a DGX A100 draws
  EXPECT_EQ(mixed.device_model(0).idle_power, base::Watts(70));
  EXPECT_EQ(mixed.device_model(16 * 8).idle_power, base::Watts(67));
}

TEST(TopologyPower, FaultsAreSaidAtTheirPlace) {
  const auto refused = [](std::string_view good, std::string_view bad) {
    std::string text(kPowered);
    text.replace(text.find(good), good.size(), bad);
    const auto faults = parse_topology(text, "warm.yaml");
    return faults ? "" : to_string(faults.error());
  };
  EXPECT_THAT(refused("idle_power: 70 W", "idle_power: 700 W"),
              HasSubstr("an idle device draws 700 W, and its limit is 700 W"));
  EXPECT_THAT(refused("  power_source: a meter\n", ""), HasSubstr("power_source"));
  EXPECT_THAT(refused("2.4 kW", "2.4"), HasSubstr("warm.yaml:16:"));
}

}  // namespace
}  // namespace orrery::topologies
