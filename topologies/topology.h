#pragma once
/// Where a program runs: a directed graph of devices, switches, network cards and host bridges.
///
/// Units. Every `bytes_per_second` is the capacity of ONE direction; a datasheet's "600 GB/s of
/// NVLink" counts both, so it is 300 GB/s here. Capacities are integers, so that the simulator's
/// shares of them are exact.
///
/// Ranks are host-major: rank = host * devices_per_host() + local index, local index in the order
/// of the file (other orders of the hosts: with_hosts_first()).
///
/// Routes. Devices do not forward, so a path has devices at its two ends only. Within a host, and
/// in a builder's own graph, among the paths from a to b,
///
///     route(a, b) = argmin over paths p of
///                   ( |p|, sum of latency, -(min of bytes_per_second), link ids of p ),
///
/// compared lexicographically, latency in picoseconds (rounded up per link). Between hosts of a
/// generated cluster,
///
///     route(a, b) = route(a, nic(a)), its cable, the fabric's path (fabric.h), its cable,
///                   route(nic(b), b)
///     nic(v)      = argmin over cards n of v's host of
///                   ( |route(v, n)|, its latency, -its bottleneck ),
///
/// and of k cards that tie, device i takes number i mod k: a GPU uses the card on its rail, or the
/// nearest in PCIe. The same holds inside a host whose parts only the fabric joins. No host
/// forwards for others. Nothing depends on machine, thread or order of questions.
///
/// Replication. Hosts of a generated cluster are stored one after another, fabric last (cluster.h).
/// Routes are solved once per kind of host and shifted, so thousands of hosts cost no all-pairs
/// table.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/numbers.h"
#include "base/options.h"
#include "base/result.h"
#include "base/units.h"
#include "topologies/fabric/cluster.h"
#include "topologies/graph/elements.h"

namespace orrery::topologies {

class RouteTable;

/// Immutable; safe to read from many threads (the route cache locks inside). Copies share one route
/// cache. Built by TopologyBuilder.
class Topology {
 public:
  const std::string& name() const { return name_; }
  uint32_t hosts() const { return hosts_; }
  uint32_t devices_per_host() const { return devices_per_host_; }
  uint32_t device_count() const { return count_of(devices_); }

  /// Preconditions here and below: ranks < device_count(), ids in range.
  VertexId device(uint32_t rank) const;
  const DeviceModel& device_model(uint32_t rank) const;
  // distinct models, in order of the file
  std::span<const DeviceModel> device_models() const { return models_; }

  std::span<const Vertex> vertices() const { return vertices_.raw(); }
  std::span<const Link> links() const { return links_.raw(); }
  const Vertex& vertex(VertexId id) const { return vertices_[id]; }
  const Link& link(LinkId id) const { return links_[id]; }

  /// What a host draws beside its devices (processors, memory, cards, fans, losses of its power
  /// supplies); zero: not stated.
  base::Watts host_power(uint32_t host) const { return host_powers_[host]; }
  /// What the switches between hosts draw for each device; zero: one host, or not stated.
  base::Watts fabric_power_per_device() const { return fabric_power_per_device_; }

  uint32_t host_of(uint32_t rank) const;
  bool same_host(uint32_t a, uint32_t b) const { return host_of(a) == host_of(b); }

  /// The route defined above; empty when from_rank == to_rank. O(path) once the pair is cached, and
  /// valid as long as this object or a copy. Every pair of devices has a route, for the builder
  /// refuses others, unless links failed: see cut_off().
  std::span<const LinkId> route(uint32_t from_rank, uint32_t to_rank) const;

  /// Appends it, for a caller that asks for many pairs once.
  void append_route(uint32_t from_rank, uint32_t to_rank, std::vector<LinkId>& path) const;

  /// The same rule between any two vertices, e.g. a device and its host bridge; empty when equal or
  /// unreachable.
  std::span<const LinkId> path(VertexId from, VertexId to) const;

  /// The same machine with links of `kind` (empty: all) at ppm / 10^6 of their rate, rounded down
  /// to whole bytes per second, at least 1.
  /// @pre ppm > 0; not made by with_links().
  Topology with_link_rates(int64_t ppm, std::string_view kind = {}) const;

  /// The same machine with the links inside hosts, and those of the fabric (in_host()), at ppm /
  /// 10^6 of their rate. Routes stay. Rounding and precondition as above.
  Topology with_level_rates(int64_t hosts_ppm, int64_t fabric_ppm) const&;
  Topology with_level_rates(int64_t hosts_ppm, int64_t fabric_ppm) &&;  // in place
  /// The same machine with links of the kinds named at ppm / 10^6 of their rate. Routes stay.
  Topology with_kind_rates(std::span<const std::pair<std::string, int64_t>> ppm_of_kind) &&;
  /// Whether both ends of a link are in one host; else it is the fabric's.
  bool in_host(const Link& link) const;

  /// The same machine with some links degraded or failed; every link is a class of its own. Slower
  /// links keep their routes, for networks route by hops, not by load; what crosses a failed link
  /// takes a detour (detours.h). @pre each link once, rates >= 0; not made by with_links().
  Topology with_links(std::span<const LinkRate> rates) const;
  /// The same machine whose ranks count the devices of these hosts first, in their order, then
  /// those of the others. @pre each host once, < hosts().
  Topology with_hosts_first(std::span<const uint32_t> hosts) const;
  /// Whether with_links() changed anything.
  bool changed() const { return !built_rates_.empty(); }
  /// The rate that a link had before with_links().
  int64_t built_rate(LinkId id) const {
    return built_rates_.empty() ? link(id).bytes_per_second : built_rates_[id.raw()];
  }
  /// Whether route() leaves the way it took before with_links().
  bool detoured(uint32_t from_rank, uint32_t to_rank) const;
  /// Two of `ranks` that failed links leave without a route from the first to the second.
  std::optional<std::pair<uint32_t, uint32_t>> cut_off(std::span<const uint32_t> ranks) const;

  /// Set when all hosts are copies of the first under one switch or a regular tree of them.
  const std::optional<HostCopies>& host_copies() const { return host_copies_; }

  /// Layout of a generated cluster; null for a builder's own graph.
  const ClusterShape* cluster() const { return cluster_.get(); }

  /// The generator's class of a vertex or link, 0 .. vertex_classes() - 1: an equitable partition
  /// to begin colour refinement from (cluster.h). In a builder's own graph every one is a class of
  /// its own. O(log runs) after the first call.
  uint32_t vertex_class(VertexId id) const;
  uint32_t link_class(LinkId id) const;
  uint32_t vertex_classes() const;
  uint32_t link_classes() const;

  /// Of everything that can change a step (names, numbers, order), not of source notes, nor of
  /// power beside a device's limit: 32 hexadecimal digits.
  const std::string& fingerprint() const { return fingerprint_; }

  /// Where the numbers came from, one note per group of the file.
  std::span<const std::string> source_notes() const { return source_notes_; }

 private:
  friend class TopologyBuilder;
  Topology();
  template <class Ppm>
  void scale_links(const Ppm& ppm_of);

  std::string name_;
  uint32_t hosts_ = 0;
  uint32_t devices_per_host_ = 0;
  std::vector<DeviceModel> models_;
  std::vector<VertexId> devices_;         // [rank]
  std::vector<uint32_t> device_models_;   ///< [rank] index into models_
  std::vector<base::Watts> host_powers_;  ///< [host]
  base::Watts fabric_power_per_device_;
  base::IdVector<VertexId, Vertex> vertices_;
  base::IdVector<LinkId, Link> links_;
  std::optional<HostCopies> host_copies_;
  std::shared_ptr<const ClusterShape> cluster_;
  struct LazyClasses;
  std::shared_ptr<LazyClasses> classes_;  ///< of cluster_
  const ClusterClasses& classes() const;
  /// For a machine that is no cluster of its generator any more.
  void forget_layout();
  std::string fingerprint_;
  std::vector<std::string> source_notes_;
  std::vector<int64_t> built_rates_;  ///< [link], empty unless made by with_links()
  std::shared_ptr<const RouteTable> routes_;
};

/// A link's rate at ppm / 10^6 of it, rounded down to whole bytes per second, at least 1. @pre ppm
/// > 0.
int64_t rate_at_ppm(int64_t bytes_per_second, int64_t ppm);

/// "gpu[3] of host 0".
std::string device_name(const Topology& topology, uint32_t rank);
/// "gpu[0] -> nvswitch (host 0)".
std::string link_name(const Topology& topology, LinkId id);

/// Reads a topology file (schema in README.md) and replicates its host `hosts` times, joined by its
/// fabric. Of a file that fixes its hosts (it counts them, or its fabric is a torus or a tree),
/// `hosts` is 1 (what the file says) or their number. Errors: those of base/config.h; kInconsistent
/// (parts that do not fit, an unreachable device, hosts > 1 without a fabric), kNotFound (a name
/// that no part has), kOutOfRange (hosts outside 1 .. kMaxHosts, an index beyond a group).
/// `settings`: numbers that take other values (import/settings.h).
inline constexpr uint32_t kMaxHosts = 1'048'576;
[[nodiscard]] base::Result<Topology> load_topology(const std::filesystem::path& path,
                                                   uint32_t hosts = 1,
                                                   std::span<const base::Setting> settings = {});

/// The same from text; `name` stands for the file in diagnostics.
[[nodiscard]] base::Result<Topology> parse_topology(std::string_view text, std::string_view name,
                                                    uint32_t hosts = 1);

/// A topology by name: a file of topologies/catalog/, or "local", this machine (local.h). kNotFound
/// with a hint.
[[nodiscard]] base::Result<Topology> catalog_topology(std::string_view name, uint32_t hosts = 1,
                                                      std::span<const base::Setting> settings = {});

struct CatalogEntry {
  std::string name;
  std::string description;  ///< one line
  std::string source;
};
std::vector<CatalogEntry> list_catalog();  ///< by name

}  // namespace orrery::topologies
