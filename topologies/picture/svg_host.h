#pragma once
/// One host as a panel of rows: network cards on top, CPUs, PCIe switches, devices, switches that
/// only devices use.

#include "topologies/picture/svg_canvas.h"
#include "topologies/topology.h"

namespace orrery::topologies {

/// The vertices and own links of one host (or of a builder's whole graph). Returns the panel's
/// height.
double draw_host(Canvas& canvas, const Topology& topology, uint32_t first_vertex, uint32_t vertices,
                 uint32_t first_link, uint32_t links, double top, std::string_view title);

}  // namespace orrery::topologies
