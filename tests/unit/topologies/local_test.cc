#include "topologies/import/local.h"

#include <gmock/gmock.h>

#include "fixture.h"

namespace orrery::topologies {
namespace {

using testing::HasSubstr;

LocalMachine four_cores() {
  return {.cpu_name = "Invented 3000",
          .cores = 4,
          .cores_source = "hwloc",
          .hertz = 2.5e9,
          .hertz_source = "cpuid leaf 16h",
          .instruction_set = "AVX2 and FMA",
          .fp32_flop_per_cycle = 32,
          .bf16_flop_per_cycle = 32,
          .memory_bytes = int64_t{64} << 30};
}

// 2.5 GHz * 32 FLOP = 80 GFLOP/s; 64 GiB / 4 cores; one memory channel, 25.6 GB/s.
TEST(LocalTopology, MakesEveryCoreADevice) {
  const Topology t = expect_ok(local_topology(four_cores()));
  EXPECT_EQ(t.name(), "local");
  EXPECT_EQ(t.device_count(), 4u);
  const DeviceModel& core = t.device_model(3);
  EXPECT_EQ(core.name, "core of Invented 3000");
  EXPECT_DOUBLE_EQ(core.peak_fp32.raw(), 80e9);
  EXPECT_EQ(core.memory_bytes, int64_t{16} << 30);
  EXPECT_DOUBLE_EQ(core.memory_bandwidth.raw(), 6.4e9);
  EXPECT_EQ(core.source,
            "derived: hwloc + cpuid (2.50 GHz from cpuid leaf 16h; AVX2 and FMA: 32 fp32 and 32 "
            "bf16 FLOP per cycle)");
}

TEST(LocalTopology, MessagesMeetOnTheMemoryBus) {
  const Topology t = expect_ok(local_topology(four_cores()));
  EXPECT_EQ(describe(t, 0, 3), "0/core[0] > 0/bus_in > 0/bus_out > 0/core[3]");
  EXPECT_EQ(t.route(0, 3)[1], t.route(2, 1)[1]);
  EXPECT_EQ(t.link(t.route(0, 3)[1]).bytes_per_second, 25'600'000'000);
}

TEST(LocalTopology, BusGrowsWithTheCores) {
  LocalMachine machine = four_cores();
  machine.cores = 16;
  const Topology t = expect_ok(local_topology(machine));
  EXPECT_EQ(t.link(t.route(0, 1)[1]).bytes_per_second, 4 * 25'600'000'000);
}

TEST(LocalTopology, IsOneHost) {
  const auto t = local_topology(four_cores(), 2);
  ASSERT_FALSE(t);
  EXPECT_EQ(to_string(t.error()),
            "error[E0006]: topology 'local' is one machine, not 2 hosts; describe the cluster in a "
            "topology file, with a "
            "'fabric:' section");
}

TEST(LocalTopology, ThisMachineHasPlausibleNumbers) {
  const LocalMachine machine = expect_ok(probe_local_machine());
  EXPECT_GE(machine.cores, 1u);
  EXPECT_GE(machine.hertz, 1e8);
  EXPECT_LE(machine.hertz, 1e10);
  EXPECT_GE(machine.fp32_flop_per_cycle, 8u);
  EXPECT_GE(machine.bf16_flop_per_cycle, machine.fp32_flop_per_cycle);
  EXPECT_GE(machine.memory_bytes, int64_t{64} << 20);
  const Topology t = expect_ok(catalog_topology("local"));
  EXPECT_EQ(t.device_count(), machine.cores);
  EXPECT_THAT(t.device_model(0).source, HasSubstr("+ cpuid"));
}

}  // namespace
}  // namespace orrery::topologies
