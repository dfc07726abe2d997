// The reader of topology files over arbitrary bytes: a topology, or diagnostics with a place.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/config.h"
#include "topologies/import/topology_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto check = [](const base::Result<topologies::Topology>& topology) {
    ORRERY_CHECK(topology ? topology->device_count() > 0 : !topology.error().empty());
  };
  const auto root = base::Node::parse_text(text, "input.yaml");
  if (!root) return 0;
  const auto file = topologies::read_topology_file(*root);
  if (!file) {
    ORRERY_CHECK(!file.error().empty() && file.error().front().where.file == "input.yaml", "{}",
                 base::to_string(file.error()));
    return 0;
  }
  // Few hosts, so that a run takes microseconds: what a file counts is not what it can make the
  // reader hold.
  uint64_t hosts = 0;
  for (const topologies::HostReference& reference : file->references) hosts += reference.count;
  uint64_t vertices = 0;
  for (const topologies::HostKind& kind : file->kinds) {
    for (const topologies::PartGroup& part : kind.parts) vertices += part.count;
  }
  if (hosts > 64 || vertices > 512) return 0;
  check(topologies::parse_topology(text, "input.yaml", 1));
  check(topologies::parse_topology(text, "input.yaml", 3));
  return 0;
}
