#include "topologies/import/local.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "topologies/builder.h"

namespace orrery::topologies {

using base::ErrorCode;
using namespace base::literals;

namespace {

// Assumptions, until calibration measures them.
// One DDR4-3200 channel (3200 MT/s * 8 B = 25.6 GB/s, JEDEC JESD79-4) for every four cores.
constexpr int64_t kChannelBytesPerSecond = 25'600'000'000;
constexpr int64_t kBusBytesPerSecondPerCore = kChannelBytesPerSecond / 4;
// of each of the three links: a cache-to-cache hand-over
constexpr base::Seconds kCopyLatency = 0.1_us;
constexpr base::Seconds kCallOverhead = 5_us;  // dispatch of one operator on the CPU

constexpr std::string_view kAssumptions =
    "assumed: 6.4 GB/s of memory bandwidth per core (one DDR4-3200 channel per four cores), 25.6 "
    "GB/s per copying "
    "core, "
    "0.1 us per link, 5 us per operator; calibrate to replace";

}  // namespace

DeviceModel local_core_model(const LocalMachine& machine) {
  return {
      .name = fmt::format("core of {}", machine.cpu_name),
      .peak_fp32 = base::FlopsPerSecond(machine.hertz * machine.fp32_flop_per_cycle),
      .peak_bf16 = base::FlopsPerSecond(machine.hertz * machine.bf16_flop_per_cycle),
      .memory_bandwidth = base::BytesPerSecond(real(kBusBytesPerSecondPerCore)),
      .memory_bytes = machine.memory_bytes / machine.cores,
      .launch_overhead = kCallOverhead,
      .source = fmt::format(
          "derived: {} + cpuid ({:.2f} GHz from {}; {}: {} fp32 and {} bf16 FLOP per cycle)",
          machine.cores_source, machine.hertz / 1e9, machine.hertz_source, machine.instruction_set,
          machine.fp32_flop_per_cycle, machine.bf16_flop_per_cycle),
  };
}

LocalLinks local_links() { return {kChannelBytesPerSecond, kCopyLatency, kAssumptions}; }

base::Result<Topology> local_topology(const LocalMachine& machine, uint32_t hosts) {
  ORRERY_CHECK(machine.cores >= 1 && machine.hertz > 0 && machine.fp32_flop_per_cycle > 0);
  if (hosts != 1) {
    return base::fail(
        base::make_error(hosts == 0 ? ErrorCode::kOutOfRange : ErrorCode::kInconsistent,
                         "topology 'local' is one machine, not {} hosts", hosts)
            .with_hint("describe the cluster in a topology file, with a 'fabric:' section"));
  }
  TopologyBuilder builder("local");
  const uint32_t model = builder.add_model(local_core_model(machine));
  std::vector<VertexId> cores;
  for (uint32_t i = 0; i < machine.cores; ++i)
    cores.push_back(builder.add_device(fmt::format("core[{}]", i), 0, model));
  const VertexId bus_in = builder.add_vertex(VertexKind::kHostBridge, "bus_in", 0);
  const VertexId bus_out = builder.add_vertex(VertexKind::kHostBridge, "bus_out", 0);
  const int64_t bus = std::max(kChannelBytesPerSecond, kBusBytesPerSecondPerCore * machine.cores);
  builder.add_link(bus_in, bus_out, bus, kCopyLatency, "memory_bus");
  for (const VertexId core : cores) {
    builder.add_link(core, bus_in, kChannelBytesPerSecond, kCopyLatency, "copy");
    builder.add_link(bus_out, core, kChannelBytesPerSecond, kCopyLatency, "copy");
  }
  builder.add_source_note(
      fmt::format("{} cores: derived: {} + cpuid", machine.cores, machine.cores_source));
  builder.add_source_note(std::string(kAssumptions));
  return std::move(builder).build();
}

}  // namespace orrery::topologies
