#include "topologies/import/detect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>

#include "base/numbers.h"
#include "base/text.h"
#include "topologies/import/host_sketch.h"

namespace orrery::topologies {

using base::ErrorCode;
using namespace base::literals;

namespace {

/// Standard output of a command, or nothing when it fails or is not there. @pre a constant, not
/// user input.
std::optional<std::string> output_of(const char* command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command, "r"), [](FILE*) { return 0; });
  if (!pipe) return std::nullopt;
  std::string text;
  std::array<char, 4096> chunk{};
  while (const size_t n = fread(chunk.data(), 1, chunk.size(), pipe.get()))
    text.append(chunk.data(), n);
  return pclose(pipe.get()) == 0 && !text.empty() ? std::optional(text) : std::nullopt;
}

/// "name, MiB of memory, PCIe generation, lanes" of the first GPU.
struct Gpu {
  std::string product;
  double gibibytes = 0;
  int64_t pcie_bytes_per_second = 0;
};

std::optional<Gpu> first_gpu() {
  const auto text = output_of(
      "nvidia-smi --query-gpu=name,memory.total,pcie.link.gen.max,pcie.link.width.max "
      "--format=csv,noheader,nounits 2>/dev/null");
  if (!text) return std::nullopt;
  const std::vector<std::string> lines = base::split(*text, '\n');
  const std::vector<std::string> fields = base::split(lines.front(), ',');
  if (fields.size() != 4) return std::nullopt;
  const auto mebibytes = base::parse_real(base::trim(fields[1]));
  const auto generation = base::parse_integer(base::trim(fields[2])),
             lanes = base::parse_integer(base::trim(fields[3]));
  Gpu gpu{std::string(base::trim(fields[0])), mebibytes.value_or(0) / 1024, 0};
  // 2.5, 5 GT/s at 8b/10b; 8, 16, 32 GT/s at 128b/130b; 64 GT/s in flits of 242 of 256 bytes.
  constexpr std::array<double, 6> kLane = {0.25e9,
                                           0.5e9,
                                           8e9 * 128 / 130 / 8,
                                           16e9 * 128 / 130 / 8,
                                           32e9 * 128 / 130 / 8,
                                           64e9 * 242 / 256 / 8};
  if (generation && lanes && *generation >= 1 && *generation <= 6 && *lanes >= 1 && *lanes <= 32) {
    gpu.pcie_bytes_per_second =
        static_cast<int64_t>(kLane[as_index(*generation - 1)] * real(*lanes));
  }
  return gpu;
}

}  // namespace

std::optional<std::string> match_device(std::string_view product, double gibibytes,
                                        std::span<const std::string> known) {
  // The family is the catalog name up to its first dash; the memory is its number before "GB".
  std::vector<std::pair<double, std::string>> fits;
  const std::vector<std::string> raw = base::split(product, ' ');
  for (const std::string& name : known) {
    const std::string family = name.substr(0, name.find('-'));
    const bool named = std::ranges::any_of(raw, [&](const std::string& word) {
      return word == family || word.starts_with(family + "-");
    });
    const size_t dash = name.rfind('-');
    const auto memory =
        name.ends_with("GB")
            ? base::parse_real(std::string_view(name).substr(dash + 1, name.size() - dash - 3))
            : std::nullopt;
    if (named && memory) fits.emplace_back(std::abs(*memory - gibibytes), name);
  }
  if (fits.empty()) return std::nullopt;
  std::ranges::sort(fits);
  // The driver keeps a little back, and vendors count in GB: a tenth apart is the same.
  if (fits.front().first > 0.1 * gibibytes) return std::nullopt;
  if (fits.size() > 1 && fits[1].first == fits.front().first) return std::nullopt;
  return fits.front().second;
}

Imported describe_cores(const LocalMachine& machine) {
  Imported imported;
  const DeviceModel model = local_core_model(machine);
  HostSketch host;
  const LocalLinks links = local_links();
  const uint32_t memory = host.add(VertexKind::kHostBridge, "memory");
  for (uint32_t i = 0; i < machine.cores; ++i) {
    host.join(host.add(VertexKind::kDevice, "core"), memory, "copy", links.copy_bytes_per_second,
              links.latency, std::string(links.source));
  }
  imported.file = {.name = "local",
                   .description = fmt::format("{} cores of {}", machine.cores, machine.cpu_name),
                   .source = std::string(kLocalSource),
                   .models = {model},
                   .kinds = {host.finish()}};
  imported.notes.push_back("no GPU of the catalog was found: the cores are the devices");
  imported.notes.push_back(
      "memory bandwidth and latencies are assumptions; 'orrery calibrate' measures. --cluster "
      "local also has the bus that all cores share");
  return imported;
}

base::Result<Imported> detect_local() {
  if (const auto gpu = first_gpu()) {
    const std::vector<std::string> known = catalog_device_names();
    const auto device = match_device(gpu->product, gpu->gibibytes, known);
    const auto matrix = output_of("nvidia-smi topo -m 2>/dev/null");
    if (device && matrix) {
      HostImport host{.name = "local-gpus", .model = {}};
      TRY(host.model, catalog_device_model(*device));
      host.pcie_bytes_per_second =
          gpu->pcie_bytes_per_second > 0 ? gpu->pcie_bytes_per_second : 31'508'000'000;
      host.nvlink_bytes_per_second =
          device->starts_with("B") || device->starts_with("GB") ? 50'000'000'000 : 25'000'000'000;
      host.socket_bytes_per_second = 16'000'000'000;
      TRY(Imported imported, import_nvidia_smi(*matrix, "nvidia-smi topo -m", host));
      imported.notes.push_back(
          fmt::format("'{}' is taken as the catalog's {}", gpu->product, *device));
      imported.notes.push_back("between sockets 16 GB/s are assumed");
      return imported;
    }
  }
  TRY(const LocalMachine machine, probe_local_machine());
  return describe_cores(machine);
}

}  // namespace orrery::topologies
