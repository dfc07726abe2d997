#pragma once
/// Builds a Topology vertex by vertex; used by the file reader, by generators and by tests.
///
///     TopologyBuilder b("pair");
///     const uint32_t model = b.add_model({...});
///     const VertexId x = b.add_device("x", 0, model), y = b.add_device("y", 0, model);
///     b.add_duplex(x, y, 25'000'000'000, 1.0_us, "nvlink");
///     Result<Topology> pair = std::move(b).build();

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "topologies/topology.h"

namespace orrery::topologies {

/// Preconditions are checks: ids from this builder, capacities > 0, latencies >= 0, no link from a
/// vertex to itself.
class TopologyBuilder {
 public:
  explicit TopologyBuilder(std::string name);

  uint32_t add_model(DeviceModel model);  ///< index for add_device
  VertexId add_device(std::string name, uint32_t host, uint32_t model);
  /// any kind but kDevice; kNoHost for fabric
  VertexId add_vertex(VertexKind kind, std::string name, uint32_t host);
  LinkId add_link(VertexId from, VertexId to, int64_t bytes_per_second, base::Seconds latency,
                  std::string kind);
  /// Two links of the same capacity: from -> to, then to -> from.
  void add_duplex(VertexId from, VertexId to, int64_t bytes_per_second, base::Seconds latency,
                  const std::string& kind);
  void add_source_note(std::string note);
  /// What a host draws beside its devices; zero, as without this call: not stated.
  void set_host_power(uint32_t host, base::Watts power);

  /// The graph as added. Ranks: by host, then in order of addition.
  /// Errors (kInconsistent): no device, hosts not numbered 0 .. H-1 with equally many devices each,
  /// a device that cannot reach another.
  [[nodiscard]] base::Result<Topology> build() &&;

  /// A cluster whose kinds of hosts were added as hosts 0 .. K-1: counts[0] copies of the first,
  /// then counts[1] of the second, ...; every network card gets a cable to `fabric`. Ids are laid
  /// out as in cluster.h. A host alone has no fabric.
  /// @pre every count >= 1, no vertex outside hosts 0 .. K-1, no link between two of them, a fabric
  /// for more than one host. Errors: as build(), those of make_fabric; kOutOfRange when ids would
  /// overflow.
  [[nodiscard]] base::Result<Topology> build_cluster(std::span<const uint32_t> counts,
                                                     const std::optional<FabricSpec>& fabric) &&;

 private:
  base::Result<void> assign_ranks();
  VertexId add(VertexKind kind, std::string name, uint32_t host, uint32_t model);
  base::Result<void> check_reachable() const;

  Topology topology_;
  std::vector<uint32_t> vertex_models_;   // [vertex], kNoModel unless a device
  std::vector<base::Watts> host_powers_;  // [host as added], those behind the last: not stated
  // what the links do not tell of a fabric's paths, for the fingerprint
  std::vector<uint64_t> routing_;
};

}  // namespace orrery::topologies
