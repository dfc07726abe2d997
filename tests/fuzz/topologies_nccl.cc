// The reader of NCCL's XML over arbitrary bytes: a file that loads or says why not, or diagnostics
// with a place.
#include "tests/fuzz/topologies_import.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  topologies::check_import(
      topologies::import_nccl(text, "topo.xml",
                              {.name = "n", .model = topologies::invented_device()}),
      "topo.xml");
  return 0;
}
