#pragma once
/// A topology file as values: schema `orrery.topology/1`, documented in README.md.
///
/// Reading resolves every name, so that what refers to nothing is reported with its place in the
/// file:
///
///     net.yaml:31:13: error[E0007]: host has no part 'nvswich'; did you mean 'nvswitch'?

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/result.h"
#include "topologies/builder.h"
#include "topologies/fabric/fabric.h"
#include "topologies/topology.h"

namespace orrery::topologies {

/// `count` vertices of one kind: "name" when count is 1, else "name[0]" .. "name[count - 1]".
struct PartGroup {
  VertexKind kind = VertexKind::kSwitch;
  std::string name;
  uint32_t count = 1;
  uint32_t first = 0;  ///< index of its first vertex within the host
  uint32_t model = 0;  ///< devices: index into TopologyFile::models
};

/// Duplex links of equal capacity.
struct LinkGroup {
  std::string kind;
  int64_t bytes_per_second = 0;  ///< one direction, `count` lanes together
  base::Seconds latency;
  /// vertex indices within the host, in order of link ids
  std::vector<std::pair<uint32_t, uint32_t>> ends = {};
  std::string source = {};
};

/// One kind of host: its parts and links.
struct HostKind {
  std::vector<PartGroup> parts;  ///< devices, switches, host bridges, network cards: in this order
  std::vector<LinkGroup> links;
  uint32_t count = 1;      ///< of a cluster that counts its hosts; else every count is asked for
  base::Watts power = {};  ///< what a host draws beside its devices; zero: not stated
  std::string power_source = {};
};

/// A host that is described elsewhere: a catalog name, or a file beside this one.
struct HostReference {
  std::string type;
  uint32_t count = 1;
  base::SourceSpan place;
  std::optional<uint32_t> devices = {};  ///< the first so many of its devices; none: all
};

struct TopologyFile {
  std::string name;
  std::string description;  ///< one line
  std::string source;       ///< of the host's make-up; empty where it is referred to
  std::vector<DeviceModel> models;
  std::vector<HostKind> kinds;                 ///< one, or none until the references are resolved
  std::vector<HostReference> references = {};  ///< `host: NAME`, `host: {type, devices}`, `hosts:`
  bool counts_hosts = false;                   ///< `hosts:`, so the file says how many there are
  std::optional<FabricSpec> fabric = {};
  std::vector<std::string> source_notes = {};
  base::SourceSpan root_place = {}, host_place = {};  ///< for faults found later
};

/// Every fault of the file at once.
[[nodiscard]] base::Result<TopologyFile> read_topology_file(const base::Node& root);

/// Leaves the first `devices` of the host's devices, the same share of every other part, rounded
/// up, and the links between what is left. @pre no more than it has.
void keep_devices(HostKind& host, uint32_t devices);
[[nodiscard]] uint32_t device_count(const HostKind& host);

/// Adds the kind, the models and the notes of a file that a reference of `file` names.
void add_host_kind(TopologyFile& file, const TopologyFile& described, uint32_t count);

/// `hosts` copies of the file's host; or the hosts that the file fixes (it counts them, or its
/// fabric is a torus or a tree). @pre references are resolved. Errors: see load_topology.
[[nodiscard]] base::Result<Topology> build_topology(const TopologyFile& file, uint32_t hosts);

}  // namespace orrery::topologies
