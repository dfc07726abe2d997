#pragma once
/// A topology file of the machine this process runs on.

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "topologies/import/import.h"
#include "topologies/import/local.h"

namespace orrery::topologies {

/// Where `nvidia-smi` is there and finds GPUs of the catalog: its matrix (import.h), PCIe rate from
/// its query of the link. Elsewhere the cores of hwloc and cpuid as devices, joined by the memory
/// (local.h). Errors: those of local.h and import.h.
[[nodiscard]] base::Result<Imported> detect_local();

/// The cores of a machine as a file: local_topology without the bus that all cores share, for links
/// of a file are duplex and a bus is not.
Imported describe_cores(const LocalMachine& machine);

/// The catalog's device that `nvidia-smi --query-gpu=name` means: "NVIDIA H200" is
/// "H200-SXM5-141GB". Nothing when none or several fit; `gibibytes` of memory tell those of one
/// family apart.
std::optional<std::string> match_device(std::string_view product, double gibibytes,
                                        std::span<const std::string> known);

}  // namespace orrery::topologies
