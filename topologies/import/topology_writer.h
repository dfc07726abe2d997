#pragma once
/// A topology file as text. What is read from it again is the same topology, to the last byte per
/// second.

#include <span>
#include <string>

#include "topologies/import/topology_file.h"

namespace orrery::topologies {

/// `notes` become comments at the top. Bandwidths are written for `count: 1`; of fabrics only those
/// an importer makes (switch, tree). @pre one kind of host, or references.
std::string write_topology(const TopologyFile& file, std::span<const std::string> notes);

}  // namespace orrery::topologies
