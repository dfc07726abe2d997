#pragma once
/// What holds for every importer of a topology, whatever the bytes.
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/config.h"
#include "topologies/import/import.h"
#include "topologies/import/topology_writer.h"

namespace orrery::topologies {

inline DeviceModel invented_device() {
  return {"D", base::FlopsPerSecond(1), base::FlopsPerSecond(1), base::BytesPerSecond(1),
          1,   base::Seconds(0),        base::Watts(),           "invented"};
}

/// Diagnostics have a place. What was imported is written, and read back without a fault; a graph
/// in which devices cannot reach each other may still be refused.
inline void check_import(const base::Result<Imported>& imported, std::string_view name) {
  if (!imported) {
    ORRERY_CHECK(!imported.error().empty());
    for (const base::Diagnostic& fault : imported.error())
      ORRERY_CHECK(fault.where.file == name && fault.where.line > 0);
    return;
  }
  const std::string text = write_topology(imported->file, imported->notes);
  const auto root = base::Node::parse_text(text, "written.yaml");
  ORRERY_CHECK(root.has_value(), "{}", base::to_string(root.error()));
  const auto file = read_topology_file(*root);
  ORRERY_CHECK(file.has_value(), "{}", base::to_string(file.error()));
}

}  // namespace orrery::topologies
