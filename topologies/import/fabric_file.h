#pragma once
/// The section `fabric:` of a topology file.

#include <string>
#include <vector>

#include "base/config.h"
#include "topologies/fabric/fabric.h"

namespace orrery::topologies {

/// Adds the source to `notes`. A key that the shape does not have is a fault, as is one that it
/// misses.
FabricSpec read_fabric(const base::Node& node, std::vector<std::string>& notes,
                       base::ErrorSink& sink);

}  // namespace orrery::topologies
