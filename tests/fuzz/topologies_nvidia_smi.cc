// The reader of nvidia-smi's matrix over arbitrary bytes: a file that loads, or diagnostics with a
// place.
#include "tests/fuzz/topologies_import.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const topologies::HostImport known{.name = "n",
                                     .model = topologies::invented_device(),
                                     .pcie_bytes_per_second = 1,
                                     .nvlink_bytes_per_second = 1,
                                     .socket_bytes_per_second = 1,
                                     .nic_bytes_per_second = 1};
  topologies::check_import(topologies::import_nvidia_smi(text, "topo.txt", known), "topo.txt");
  return 0;
}
