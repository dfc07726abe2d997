// Orders of a mixed machine's hosts by their devices.
#include "topologies/device_order.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/numbers.h"
#include "tests/support/scratch_folder.h"

namespace orrery::topologies {
namespace {

/// Hosts of two devices; one letter each.
Topology machine(const std::string& hosts) {
  std::string text = "schema: orrery.topology/1\nname: mixed\ndescription: hosts\nhosts:\n";
  const tests::ScratchFolder folder;
  for (const char letter : std::string("ABC")) {
    const std::string host = fmt::format(R"(schema: orrery.topology/1
name: host-{0}
description: two devices on a switch
device_models:
  - name: {0}
    peak_fp32: 10 TFLOP/s
    peak_bf16: 100 TFLOP/s
    memory_bandwidth: 1000 GB/s
    memory: 1 GiB
    launch_overhead: 1 us
    source: made up
host:
  source: made up
  devices:
    - {{name: gpu, model: {0}, count: 2}}
  switches:
    - {{name: switch}}
  nics:
    - {{name: nic}}
  links:
    - from: gpu
      to: switch
      kind: nvlink
      bandwidth_per_direction: 20 GB/s
      latency: 1 us
      source: made up
    - from: nic
      to: switch
      kind: pcie
      bandwidth_per_direction: 20 GB/s
      latency: 1 us
      source: made up
)",
                                         letter);
    folder.write(std::string(1, letter) + ".yaml", host);
  }
  for (const char letter : hosts)
    text += fmt::format("  - {{type: ./{}.yaml, count: 1}}\n", letter);
  text +=
      "fabric: {name: core, shape: switch, kind: ib, bandwidth_per_direction: 10 GB/s, latency: 1 "
      "us, source: made up}\n";
  folder.write("mixed.yaml", text);
  auto topology = load_topology(folder.path() / "mixed.yaml");
  if (!topology) ADD_FAILURE() << base::to_string(topology.error());
  return *std::move(topology);
}

std::string kinds(const Topology& topology) {
  std::string text;
  for (uint32_t rank = 0; rank < topology.device_count(); rank += topology.devices_per_host())
    text += topology.device_model(rank).name;
  return text;
}

TEST(DeviceOrder, IsThatOfTheFirstRanks) {
  EXPECT_EQ(device_order(machine("BAB")), (DeviceOrder{"B", "A"}));
  EXPECT_EQ(device_order(machine("AA")), (DeviceOrder{"A"}));
}

TEST(DeviceOrder, ThreeKindsHaveSixOrders) {
  const std::vector<DeviceOrder> all = device_orders(machine("BCA"));
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all.front(), (DeviceOrder{"B", "C", "A"}));
  EXPECT_EQ(all.back(), (DeviceOrder{"A", "C", "B"}));
}

TEST(DeviceOrder, RanksCountHostsOfAKindTogetherInTheirOldOrder) {
  const Topology file = machine("BABC");
  const Topology ordered = in_device_order(file, DeviceOrder{"A", "C", "B"}).value();
  EXPECT_EQ(kinds(ordered), "ACBB");
  EXPECT_EQ(ordered.host_of(0), 1u);
  EXPECT_EQ(ordered.host_of(4), 0u);
  EXPECT_EQ(ordered.host_of(6), 2u);
  EXPECT_TRUE(is_in_device_order(ordered, DeviceOrder{"A", "C", "B"}));
  EXPECT_FALSE(is_in_device_order(file, device_order(file)));
  EXPECT_NE(ordered.fingerprint(), file.fingerprint());
}

TEST(DeviceOrder, ThatOfTheFileChangesNothing) {
  const Topology file = machine("BBA");
  const Topology same = in_device_order(file, DeviceOrder{"B", "A"}).value();
  EXPECT_EQ(same.fingerprint(), file.fingerprint());
}

TEST(DeviceOrder, FaultsAreNamedTogether) {
  const auto wrong = in_device_order(machine("AB"), DeviceOrder{"A", "A", "X"});
  ASSERT_FALSE(wrong.has_value());
  const std::string text = base::to_string(wrong.error());
  EXPECT_NE(text.find("names 'A' twice"), std::string::npos) << text;
  EXPECT_NE(text.find("no hosts with 'X'"), std::string::npos) << text;
  const auto short_order = in_device_order(machine("AB"), DeviceOrder{"A"});
  ASSERT_FALSE(short_order.has_value());
  EXPECT_NE(base::to_string(short_order.error()).find("has A, B"), std::string::npos);
}

}  // namespace
}  // namespace orrery::topologies
