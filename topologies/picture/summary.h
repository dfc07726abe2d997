#pragma once
/// What a network is worth, in a few numbers.
///
///   level          equal cables between parts of two names: how many, and what each carries per
///                  direction
///   bisection      the least capacity, one way, between two halves of the devices
///   injection      what a host's devices can send into its cards' cables together (a maximum flow
///                  inside the host)
///   oversubscription   of a switch tier: capacity below : capacity above, the worst switch; of the
///                  whole: injection of half of the hosts : bisection
///   diameter       the most links on a route between two devices
///
/// Finding the worst halves is NP-hard. Up to kExactDevices devices in one host, every even split
/// is tried, each a maximum flow (its minimum cut is exact by duality): 6,435 flows for 16.
/// Otherwise by structure: the halves are the first and second half of the hosts in the order of
/// the generator, and of a torus also the halves along each even dimension. This is the worst split
/// of the shapes here:
///
///   leaf_spine, rail_optimised, fat_tree    N b / (2 o) for N cards of b, full for o = 1
///   torus                                   2 N / k_1 links for sides k_1 >= k_2 >= ..., k_1 even
///                                           and over 2 (Dally and Towles, section 5.2.1)
///   dragonfly                               c (g / 2)^2 links for g even groups with c links
///                                           between two

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "topologies/topology.h"

namespace orrery::topologies {

inline constexpr uint32_t kExactDevices = 16;

struct Level {
  std::string parts;  ///< "gpu - nvswitch"
  std::string kind;   ///< "nvlink"
  bool fabric = false;
  uint64_t cables = 0;           ///< in all; a cable has two directions
  int64_t bytes_per_second = 0;  ///< of one, one direction
  base::Seconds latency;
};

struct TierRatio {
  std::string tier;  ///< "leaf"
  double ratio = 1;
};

struct Summary {
  std::vector<Level> levels;              ///< hosts first, then the fabric upwards
  double bisection_bytes_per_second = 0;  ///< 0 for a single device
  std::string bisection_method;
  std::optional<double> injection_bytes_per_second;  ///< of the first host; where there is a fabric
  std::vector<TierRatio> tiers;                      ///< of a Clos network with several
  std::optional<double> oversubscription;            ///< of the whole; where there is a fabric
  uint32_t diameter = 0;
};

Summary summarise(const Topology& topology);

/// Capacity from one set of vertices to another, one way: a maximum flow over the links of
/// `topology`, every vertex forwarding.
/// @pre the sets are disjoint.
double max_flow(const Topology& topology, const std::vector<VertexId>& from,
                const std::vector<VertexId>& to);

/// "gpu" of "gpu[3]".
std::string part_name(const Vertex& vertex);

}  // namespace orrery::topologies
