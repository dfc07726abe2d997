#pragma once
/// The switches between hosts as a panel: tiers of a Clos network, a ring of dragonfly groups,
/// planes of a torus.

#include "topologies/picture/svg_canvas.h"
#include "topologies/topology.h"

namespace orrery::topologies {

/// @pre the topology has a fabric. Returns the panel's height.
double draw_fabric(Canvas& canvas, const Topology& topology, double top);

}  // namespace orrery::topologies
