// The reader of Slurm's topology.conf over arbitrary bytes: a file that reads back, or diagnostics
// with a place.
#include "tests/fuzz/topologies_import.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  topologies::SlurmImport known{.name = "n", .host = "rtx-titan-pcie", .cable = {}};
  known.cable.name = "f";
  known.cable.kind = "ib";
  known.cable.bytes_per_second = 1000;
  topologies::check_import(topologies::import_slurm(text, "topology.conf", known), "topology.conf");
  return 0;
}
