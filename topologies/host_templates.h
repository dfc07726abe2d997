#pragma once
/// The kinds of hosts of a cluster, and their copies: vertices and links of each kind in the order
/// they were added.

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "topologies/fabric/cluster.h"
#include "topologies/topology.h"

namespace orrery::topologies {

inline constexpr uint32_t kNoModel = std::numeric_limits<uint32_t>::max();

class Templates {
 public:
  /// Vertices of host t are kind t; models by vertex. @pre hosts 0 .. kinds - 1 only, links within
  /// a host.
  Templates(std::span<const Vertex> vertices, std::span<const uint32_t> models,
            std::span<const Link> links, size_t kinds);

  /// Ids of counts[t] copies of kind t each, without the fabric. Error: kOutOfRange.
  [[nodiscard]] base::Result<ClusterShape> lay_out(std::span<const uint32_t> counts) const;

  /// Appends all vertices, their models and links, the fabric's too.
  void replicate(const ClusterShape& shape, const std::optional<FabricSpec>& spec,
                 base::IdVector<VertexId, Vertex>& vertices, std::vector<uint32_t>& models,
                 base::IdVector<LinkId, Link>& links) const;

 private:
  struct Kind {
    std::vector<Vertex> vertices;
    std::vector<uint32_t> models;
    std::vector<Link> links;  // ends by index within the host
    std::vector<uint32_t> nics;
  };
  void add_host(const Kind& kind, const HostRun& run, uint32_t host, const ClusterShape& shape,
                const std::optional<FabricSpec>& spec, base::IdVector<VertexId, Vertex>& vertices,
                base::IdVector<LinkId, Link>& links) const;

  std::vector<Kind> kinds_;
};

}  // namespace orrery::topologies
