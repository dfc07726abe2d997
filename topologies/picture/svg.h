#pragma once
/// A picture of a topology: the fabric above, one host of each kind below, then a legend with the
/// numbers of the summary.

#include <string>

#include "topologies/picture/summary.h"
#include "topologies/topology.h"

namespace orrery::topologies {

/// A complete SVG document, the same bytes for the same topology. Long rows show their first parts
/// and say how many there are.
std::string draw_svg(const Topology& topology, const Summary& summary);

}  // namespace orrery::topologies
