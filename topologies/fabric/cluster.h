#pragma once
/// How a generated cluster is laid out in ids: runs of equal hosts, then the fabric. Topology keeps
/// it, so that routes and classes cost what the *different* things cost, not what all hosts cost.
///
///     vertices   run 0: host 0, host 1, ...; run 1: ...; switches of the fabric
///     links      run 0: host 0 (its own links, then up and down cable of each card), host 1, ...;
///                links of the fabric
///
/// Classes. Two vertices (links) of one class have the same attributes, and the partition is
/// equitable: every vertex of a class has, for each class of links, equally many links of it, out
/// and in. It is the coarsest one that still tells the positions within a host apart, found by
/// colour refinement of hosts and switches as wholes (McKay, Practical Graph Isomorphism, 1981,
/// section 2), so it costs O(rounds * cables), not O(links).

#include <cstdint>
#include <memory>
#include <vector>

#include "base/numbers.h"
#include "topologies/fabric/fabric.h"

namespace orrery::topologies {

/// Equal hosts next to each other.
struct HostRun {
  uint32_t hosts = 0;
  uint32_t first_host = 0;
  uint32_t first_vertex = 0, vertices = 0;  ///< of the first host; of each host
  uint32_t first_link = 0, links = 0;       ///< cables included
  uint32_t own_links = 0;                   ///< without the cables
  uint32_t first_nic = 0;                   ///< among all cards of the cluster
  std::vector<uint32_t> nics;               ///< within the host, ascending

  /// A host's card among all cards of the cluster, `nic` an index into nics.
  uint32_t nic(uint32_t host, uint32_t nic) const {
    return first_nic + (host - first_host) * count_of(nics) + nic;
  }
  /// Ids of a host's card cables, `nic` an index into nics.
  uint32_t cable_up(uint32_t host, uint32_t nic) const {
    return first_link + (host - first_host) * links + own_links + 2 * nic;
  }
};

struct ClusterClasses {
  std::vector<uint32_t> of_host;    ///< [host]
  std::vector<uint32_t> of_switch;  ///< [switch of the fabric]
  std::vector<uint32_t> of_link;    ///< [link of the fabric]
  /// [class of hosts] class of its first vertex; the others follow
  std::vector<uint32_t> host_vertex;
  std::vector<uint32_t> host_link;  ///< [class of hosts] class of its first link
  uint32_t vertex_classes = 0;
  uint32_t link_classes = 0;
};

struct ClusterShape {
  std::vector<HostRun> runs;
  std::shared_ptr<const Fabric> fabric;  ///< null for one host alone
  FabricSpec spec;                       ///< of the fabric
  uint32_t fabric_vertex = 0;            ///< id of its first switch, or the number of vertices
  uint32_t fabric_link = 0;              ///< id of its first link, or the number of links
  uint32_t hosts = 0;

  const HostRun& run_of_host(uint32_t host) const;
  const HostRun& run_of_link(uint32_t link) const;  ///< @pre link < fabric_link
  ClusterClasses classes() const;
};

}  // namespace orrery::topologies
