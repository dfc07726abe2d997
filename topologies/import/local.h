#pragma once
/// "local": the cores of this machine as devices, for executing plans on CPUs.
///
///     peak_fp32 = frequency * fp32 FLOP per cycle,
///                 FLOP per cycle = lanes * 2 (multiply, add) * FMA units
///     memory    = memory of the machine (or of its container) / cores
///
/// Frequency and instruction set come from hwloc and cpuid; nothing is measured here. What neither
/// can tell (memory bandwidth, latencies, FMA units) is an assumption named in local.cc and in the
/// topology's source notes: calibration replaces it.
///
/// Messages between cores are copies through memory that all cores share, so every route is
///     core -> bus_in -> bus_out -> core,
/// and the link bus_in -> bus_out is where they contend.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "topologies/topology.h"

namespace orrery::topologies {

/// What the catalog says; a build without hwloc says so in the topology itself.
inline constexpr std::string_view kLocalSource = "derived: hwloc + cpuid";

/// Facts about one machine; a plain value, so that local_topology can be tested on machines we do
/// not have.
struct LocalMachine {
  std::string cpu_name;
  /// physical cores this process may use, limited by the container's CPU quota
  uint32_t cores = 1;
  std::string cores_source;  ///< "hwloc"
  double hertz = 0;
  std::string hertz_source;     ///< "cpuid leaf 16h"
  std::string instruction_set;  ///< "AVX-512"
  uint32_t fp32_flop_per_cycle = 0;
  uint32_t bf16_flop_per_cycle = 0;
  int64_t memory_bytes = 0;
};

/// Looks at the machine this process runs on. Error: kMissingFeature when not even the number of
/// cores is known.
[[nodiscard]] base::Result<LocalMachine> probe_local_machine();

/// A core as a device; and the links between cores, with what is assumed about them.
DeviceModel local_core_model(const LocalMachine& machine);
struct LocalLinks {
  int64_t copy_bytes_per_second = 0;  ///< core to bus
  base::Seconds latency;              ///< of each
  std::string_view source;
};
LocalLinks local_links();

/// @pre cores >= 1 and positive rates. Errors: kInconsistent when hosts > 1 (no fabric is known).
[[nodiscard]] base::Result<Topology> local_topology(const LocalMachine& machine,
                                                    uint32_t hosts = 1);

}  // namespace orrery::topologies
