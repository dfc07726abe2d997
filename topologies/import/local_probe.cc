// What hwloc, cpuid and the container's limits say about this machine. The only file of the room
// that sees hwloc; built without it, the C library counts processors, and hyper-threads count as
// cores.
#if defined(ORRERY_HAS_HWLOC)
#include <hwloc.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "base/file.h"
#include "base/numbers.h"
#include "base/text.h"
#include "topologies/import/local.h"

namespace orrery::topologies {

using base::ErrorCode;

namespace {

struct Frequency {
  double hertz = 0;
  std::string source;
};

/// What one counter of the machine says; zero, empty or nothing where it does not know.
struct Census {
  std::string source;
  uint32_t cores = 0;
  std::string cpu_name;
  std::optional<Frequency> frequency;
};

#if defined(ORRERY_HAS_HWLOC)

/// hwloc's "FrequencyBaseMHz" (sustained, what vector code runs at) or "FrequencyMaxMHz"; absent in
/// most VMs.
std::optional<Frequency> frequency_of_hwloc(hwloc_topology_t topology) {
  for (const char* name : {"FrequencyBaseMHz", "FrequencyMaxMHz"}) {
    double slowest = 0;
    const int kinds = hwloc_cpukinds_get_nr(topology, 0);
    for (int kind = 0; kind < kinds; ++kind) {
      unsigned count = 0;
      hwloc_info_s* infos = nullptr;
      const auto index = static_cast<unsigned>(kind);
      if (hwloc_cpukinds_get_info(topology, index, nullptr, nullptr, &count, &infos, 0) != 0)
        continue;
      for (unsigned i = 0; i < count; ++i) {
        const auto mhz = std::string_view(infos[i].name) == name ? base::parse_real(infos[i].value)
                                                                 : std::nullopt;
        if (mhz && *mhz > 0) slowest = slowest == 0 ? *mhz : std::min(slowest, *mhz);
      }
    }
    if (slowest > 0) return Frequency{slowest * 1e6, std::string("hwloc ") + name};
  }
  return std::nullopt;
}

std::string info_of_hwloc(hwloc_topology_t topology, const char* key) {
  for (const hwloc_obj_type_t type : {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_MACHINE}) {
    const hwloc_obj_t object = hwloc_get_obj_by_type(topology, type, 0);
    const char* value = object == nullptr ? nullptr : hwloc_obj_get_info_by_name(object, key);
    if (value != nullptr) return std::string(base::trim(value));
  }
  return "";
}

Census take_census() {
  Census census{.source = "hwloc", .cpu_name = {}, .frequency = {}};
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return census;
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> owner(
      raw, &hwloc_topology_destroy);
  if (hwloc_topology_load(raw) != 0) return census;
  int cores = hwloc_get_nbobjs_by_type(raw, HWLOC_OBJ_CORE);
  if (cores <= 0) cores = hwloc_get_nbobjs_by_type(raw, HWLOC_OBJ_PU);
  census.cores = as_u32(std::max(cores, 0));
  census.cpu_name = info_of_hwloc(raw, "CPUModel");
  census.frequency = frequency_of_hwloc(raw);
  return census;
}

#else

Census take_census() {
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return {
      .source = "sysconf", .cores = as_u32(std::max(cores, 0L)), .cpu_name = {}, .frequency = {}};
}

#endif

/// Not hwloc's sum over NUMA nodes: where memory is hot-plugged (many VMs) that sum moves from
/// minute to minute.
int64_t memory_of_system() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  constexpr int64_t kAssumed = int64_t{1} << 30;
  return pages > 0 && page_bytes > 0 ? int64_t{pages} * page_bytes : kAssumed;
}

/// Leaf 16h: base frequency in MHz; zero under most hypervisors.
std::optional<Frequency> frequency_of_cpuid() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0x16, &eax, &ebx, &ecx, &edx) != 0 && (eax & 0xffff) != 0) {
    return Frequency{(eax & 0xffff) * 1e6, "cpuid leaf 16h"};
  }
#endif
  return std::nullopt;
}

/// "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz"
std::optional<Frequency> frequency_of_name(std::string_view name) {
  const size_t at = name.rfind("@ ");
  const size_t unit = name.rfind("GHz");
  if (at == std::string_view::npos || unit == std::string_view::npos || unit < at + 2)
    return std::nullopt;
  const auto ghz = base::parse_real(base::trim(name.substr(at + 2, unit - at - 2)));
  if (!ghz || *ghz <= 0) return std::nullopt;
  return Frequency{*ghz * 1e9, "the processor's name"};
}

/// The present clock, so rounded to 0.1 GHz: two runs should see the same machine.
std::optional<Frequency> frequency_of_proc() {
  const auto text = base::read_file("/proc/cpuinfo");
  if (!text) return std::nullopt;
  for (const std::string& line : base::split(*text, '\n')) {
    if (!line.starts_with("cpu MHz")) continue;
    const size_t colon = line.find(':');
    const auto mhz = colon == std::string::npos
                         ? std::nullopt
                         : base::parse_real(base::trim(std::string_view(line).substr(colon + 1)));
    if (mhz && *mhz > 0)
      return Frequency{std::max(1.0, std::round(*mhz / 100)) * 1e8, "/proc/cpuinfo"};
  }
  return std::nullopt;
}

/// As the kernel says, which must save the tiles; clang 14's __builtin_cpu_supports does not know
/// them.
bool has_amx_bf16() {
  const auto text = base::read_file("/proc/cpuinfo");
  return text && text->find(" amx_bf16") != std::string::npos;
}

struct Peak {
  std::string instruction_set;
  uint32_t fp32 = 0;  // FLOP per cycle and core
  uint32_t bf16 = 0;
};

/// fp32: lanes * 2 * FMA units, with the two units of server cores assumed (cpuid does not count
/// them). bf16: AVX512_BF16 does twice the fp32 work per instruction; AMX 1024 FLOP per cycle
/// (Intel 64 and IA-32 Optimization Reference Manual, "Intel AMX"); without either, 16-bit inputs
/// run at best at the fp32 rate.
Peak peak_per_cycle() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    if (has_amx_bf16()) return {"AVX-512 and AMX", 64, 1024};
    if (__builtin_cpu_supports("avx512bf16")) return {"AVX-512 with BF16", 64, 128};
    return {"AVX-512", 64, 64};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {"AVX2 and FMA", 32, 32};
  if (__builtin_cpu_supports("avx")) return {"AVX", 16, 16};  // one multiplier, one adder
  return {"SSE2", 8, 8};
#elif defined(__aarch64__)
  return {"NEON", 16, 16};  // 4 lanes, two FMA units
#else
  return {"unknown instruction set", 8, 8};
#endif
}

/// First number of a cgroup file; nothing when the file is absent or says "max".
std::optional<double> cgroup_number(const char* path) {
  const auto text = base::read_file(path);
  if (!text) return std::nullopt;
  return base::parse_real(base::trim(*text));
}

/// The container's memory limit (cgroup v2, then v1, whose "no limit" is a huge number).
int64_t limit_memory(int64_t bytes) {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    const auto limit = cgroup_number(path);
    if (limit && *limit > 0 && *limit < real(bytes)) return static_cast<int64_t>(*limit);
  }
  return bytes;
}

/// The container's CPU quota, in whole cores: "200000 100000" in cgroup v2, two files in v1.
uint32_t limit_cores(uint32_t cores) {
  std::optional<double> quota, period;
  if (const auto text = base::read_file("/sys/fs/cgroup/cpu.max")) {
    const std::vector<std::string> fields = base::split(base::trim(*text), ' ');
    if (fields.size() == 2) {
      quota = base::parse_real(fields[0]);
      period = base::parse_real(fields[1]);
    }
  } else {
    quota = cgroup_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    period = cgroup_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return cores;
  const double allowed = std::max(1.0, std::floor(*quota / *period));
  return allowed < cores ? as_u32(allowed) : cores;
}

}  // namespace

base::Result<LocalMachine> probe_local_machine() {
  Census census = take_census();
  if (census.cores == 0)
    return base::fail(ErrorCode::kMissingFeature, "{} finds no core here", census.source);

  LocalMachine machine;
  machine.cores = limit_cores(census.cores);
  machine.cores_source = census.source;
  machine.memory_bytes = limit_memory(memory_of_system());
  machine.cpu_name = census.cpu_name.empty() ? "unnamed CPU" : census.cpu_name;
  std::optional<Frequency> frequency = census.frequency;
  if (!frequency) frequency = frequency_of_cpuid();
  if (!frequency) frequency = frequency_of_name(machine.cpu_name);
  if (!frequency) frequency = frequency_of_proc();
  if (!frequency) frequency = Frequency{2e9, "an assumption"};
  machine.hertz = frequency->hertz;
  machine.hertz_source = frequency->source;
  const Peak peak = peak_per_cycle();
  machine.instruction_set = peak.instruction_set;
  machine.fp32_flop_per_cycle = peak.fp32;
  machine.bf16_flop_per_cycle = peak.bf16;
  return machine;
}

}  // namespace orrery::topologies
