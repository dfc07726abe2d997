#pragma once
/// Readers of other tools' descriptions of a machine. Each returns a topology file and what it had
/// to assume, or every fault of the text with its place; none trusts its input.
///
///   nvidia-smi   `nvidia-smi topo -m`: who is how near to whom. It has no rates, so these are
///                asked for.
///   nccl         the XML of NCCL_TOPO_DUMP_FILE: the PCIe tree with speeds, NVLinks, ports
///                (NVIDIA/nccl@069a3d4 src/graph/xml.cc, topo.cc)
///   slurm        topology.conf of topology/tree (man 5 topology.conf): switches and node ranges

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "topologies/import/topology_file.h"

namespace orrery::topologies {

struct Imported {
  TopologyFile file;
  std::vector<std::string> notes;  ///< assumptions, one sentence each
};

/// What a text about one host does not say.
struct HostImport {
  std::string name = "imported";
  DeviceModel model;                    ///< of every GPU
  int64_t pcie_bytes_per_second = 0;    ///< of a GPU's or card's slot; nvidia-smi
  int64_t nvlink_bytes_per_second = 0;  ///< of one NVLink; nvidia-smi
  int64_t socket_bytes_per_second = 0;  ///< between two NUMA nodes; nvidia-smi
  /// of a card's cable; nvidia-smi: 0 leaves the fabric out
  int64_t nic_bytes_per_second = 0;
};

[[nodiscard]] base::Result<Imported> import_nvidia_smi(std::string_view text, std::string_view file,
                                                       const HostImport& known);

/// Rates come from the file; of `known` the name and the model.
[[nodiscard]] base::Result<Imported> import_nccl(std::string_view text, std::string_view file,
                                                 const HostImport& known);

struct SlurmImport {
  std::string name = "imported";
  std::string host;  ///< catalog name or topology file of every node
  uint32_t nics_per_host = 1;
  FabricSpec cable;             ///< kind, rate, latency of a card's cable
  double oversubscription = 1;  ///< of every switch
};

[[nodiscard]] base::Result<Imported> import_slurm(std::string_view text, std::string_view file,
                                                  const SlurmImport& known);

/// A device model that some file of the catalog has. kNotFound with a hint.
[[nodiscard]] base::Result<DeviceModel> catalog_device_model(std::string_view name);

/// Names of the devices of all hosts of the catalog.
std::vector<std::string> catalog_device_names();

/// Cards and fabric of a host that a file or the catalog describes. kInconsistent when it has no
/// fabric.
[[nodiscard]] base::Result<SlurmImport> slurm_hosts(const std::string& host);

}  // namespace orrery::topologies
