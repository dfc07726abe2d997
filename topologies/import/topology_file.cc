#include "topologies/import/topology_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "base/check.h"
#include "base/numbers.h"
#include "base/text.h"
#include "topologies/import/fabric_file.h"
#include "topologies/import/file_values.h"
#include "topologies/import/link_ends.h"

namespace orrery::topologies {

using enum base::ErrorCode;
using base::ErrorSink;
using base::Node;
using base::Reader;
using base::Result;

namespace {

constexpr std::string_view kSchema = "orrery.topology/1";
constexpr int64_t kMaxPartCount = 4096;  // a host, not a cluster
constexpr int64_t kMaxLinkCount = 1024;
constexpr size_t kMaxHostLinks = 1 << 18;

enum class Pairing { kAll, kByIndex, kGrouped };
constexpr std::array<base::Named<Pairing>, 3> kPairings = {
    {{"all", Pairing::kAll}, {"by_index", Pairing::kByIndex}, {"grouped", Pairing::kGrouped}}};

int64_t read_memory(Reader& reader, std::string_view key) {
  // the fault of absence
  if (!reader.has(key)) return static_cast<int64_t>(reader.required_bytes(key).raw());
  const auto value = reader.optional_bytes(key);
  if (!value) return 0;
  const double bytes = value->raw();
  if (bytes >= 1 && bytes <= 9e15) return static_cast<int64_t>(bytes);
  reader.error(key, kOutOfRange, "memory of {} B is outside 1 B .. 9 PB", bytes);
  return 0;
}

bool is_part_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

/// All faults of a file.
struct FileReader {
  TopologyFile file = {};
  ErrorSink sink = {};

  Result<TopologyFile> read(const Node& root) {
    file.root_place = root.span();
    Reader reader(root, "topology", sink);
    const std::string schema = reader.required_string("schema");
    if (!schema.empty() && schema != kSchema) {
      reader.error("schema", kUnsupported, "schema '{}' is not '{}'", schema, kSchema);
    }
    file.name = reader.required_string("name");
    file.description = reader.required_string("description");
    const auto host = reader.optional_node("host");
    const bool refers =
        reader.has("hosts") || (host && (host->is_scalar() || host->find("type").has_value()));
    const std::vector<Node> models =
        refers ? std::vector<Node>{} : reader.required_list("device_models");
    for (const Node& model : models) read_model(model);
    read_hosts(reader);
    if (const auto fabric = reader.optional_object("fabric")) {
      file.fabric = read_fabric(*fabric, file.source_notes, sink);
      if (!refers) require_nic(*fabric);
    }
    reader.finish();
    return sink.result(std::move(file));
  }

  /// Also remembers the source as a note of the topology.
  std::string read_source(Reader& reader, std::string_view of) {
    std::string source = reader.required_string("source");
    if (!source.empty()) file.source_notes.push_back(fmt::format("{}: {}", of, source));
    return source;
  }

  void read_model(const Node& node) {
    Reader reader(node, "device model", sink);
    DeviceModel model;
    model.name = reader.required_string("name");
    model.peak_fp32 = reader.required_flops_rate("peak_fp32");
    model.peak_bf16 = reader.required_flops_rate("peak_bf16");
    const base::FlopsPerSecond none;
    model.peak_fp8 = reader.optional_flops_rate("peak_fp8").value_or(none);
    model.peak_fp4 = reader.optional_flops_rate("peak_fp4").value_or(none);
    model.memory_bandwidth = reader.required_bandwidth("memory_bandwidth");
    model.memory_bytes = read_memory(reader, "memory");
    model.launch_overhead = read_delay(reader, "launch_overhead");
    model.power = reader.optional_power("power").value_or(base::Watts());
    model.idle_power = reader.optional_power("idle_power").value_or(base::Watts());
    if (model.power.raw() > 0 && model.idle_power >= model.power) {
      reader.error("idle_power", kInconsistent, "an idle device draws {} W, and its limit is {} W",
                   model.idle_power.raw(), model.power.raw());
    }
    model.source = read_source(reader, fmt::format("device model {}", model.name));
    reader.finish();
    if (!model.name.empty() &&
        std::ranges::count(file.models, model.name, &DeviceModel::name) > 0) {
      reader.error("name", kInconsistent, "device model '{}' is defined twice", model.name);
    }
    file.models.push_back(std::move(model));
  }

  uint32_t find_model(Reader& reader) const {
    const std::string name = reader.required_string("model");
    if (name.empty()) return 0;
    std::vector<std::string> names;
    for (const DeviceModel& model : file.models) names.push_back(model.name);
    const auto it = std::ranges::find(names, name);
    if (it != names.end()) return as_u32(it - names.begin());
    reader.fault("model", kNotFound, base::did_you_mean(name, names, "device models"),
                 "no device model '{}' in device_models", name);
    return 0;
  }

  void read_part(const Node& node, VertexKind kind, HostKind& host) {
    Reader reader(node, std::string(to_string(kind)), sink);
    PartGroup part;
    part.kind = kind;
    part.name = reader.required_string("name");
    part.count = as_u32(reader.optional_int("count", {1, kMaxPartCount}).value_or(1));
    if (kind == VertexKind::kDevice) part.model = find_model(reader);
    reader.finish();
    if (!part.name.empty() && !is_part_name(part.name)) {
      reader.error("name", kBadValue,
                   "part name '{}' has characters other than letters, digits, '_' and '-'",
                   part.name);
    }
    if (!part.name.empty() && std::ranges::count(host.parts, part.name, &PartGroup::name) > 0) {
      reader.error("name", kInconsistent, "part '{}' is defined twice", part.name);
    }
    if (!host.parts.empty()) part.first = host.parts.back().first + host.parts.back().count;
    host.parts.push_back(std::move(part));
  }

  void read_link(const Node& node, HostKind& host) {
    Reader reader(node, "link", sink);
    LinkGroup group;
    const std::vector<uint32_t> from = read_end(reader, "from", host.parts);
    const std::vector<uint32_t> to = read_end(reader, "to", host.parts);
    const Pairing pairing = reader.optional_enum("pairing", kPairings).value_or(Pairing::kAll);
    group.kind = reader.required_string("kind");
    const int64_t lanes = reader.optional_int("count", {1, kMaxLinkCount}).value_or(1);
    group.bytes_per_second = read_capacity(reader, "bandwidth_per_direction", lanes);
    group.latency = read_delay(reader, "latency");
    group.source = read_source(reader, fmt::format("{} links", group.kind));
    reader.finish();
    if (from.empty() || to.empty()) return;
    size_t pairs =
        pairing == Pairing::kAll ? from.size() * to.size() : std::max(from.size(), to.size());
    for (const LinkGroup& other : host.links) pairs += other.ends.size();
    if (pairs > kMaxHostLinks) {
      reader.error("from", kOutOfRange, "{} links are more than the {} of a host", pairs,
                   kMaxHostLinks);
      return;
    }
    if (pairing == Pairing::kByIndex && from.size() != to.size()) {
      reader.error("pairing", kInconsistent,
                   "pairing by_index joins {} parts to {}: the numbers must be equal", from.size(),
                   to.size());
      return;
    }
    if (pairing == Pairing::kGrouped &&
        std::max(from.size(), to.size()) % std::min(from.size(), to.size()) != 0) {
      reader.error("pairing", kInconsistent,
                   "pairing grouped joins {} parts to {}: one number must divide the other",
                   from.size(), to.size());
      return;
    }
    group.ends = pairing == Pairing::kAll ? pair_all(from, to) : pair_grouped(from, to);
    if (group.ends.empty()) {
      reader.error("to", kInconsistent, "link joins a part to itself and nothing else");
    }
    host.links.push_back(std::move(group));
  }

  void read_host(const Node& node) {
    Reader reader(node, "host", sink);
    HostKind host;
    file.source = read_source(reader, "host");
    if (const auto power = reader.optional_power("host_power")) {
      host.power = *power;
      host.power_source = reader.required_string("power_source");
      file.source_notes.push_back(fmt::format("host power: {}", host.power_source));
    }
    constexpr std::array<std::pair<std::string_view, VertexKind>, 4> kLists = {{
        {"devices", VertexKind::kDevice},
        {"switches", VertexKind::kSwitch},
        {"host_bridges", VertexKind::kHostBridge},
        {"nics", VertexKind::kNic},
    }};
    for (const auto& [key, kind] : kLists) {
      const bool devices = kind == VertexKind::kDevice;
      const std::vector<Node> list = devices
                                         ? reader.required_list(key)
                                         : reader.optional_list(key).value_or(std::vector<Node>{});
      if (devices && reader.has(key) && list.empty()) {
        reader.error(key, kInconsistent, "host has no device");
      }
      for (const Node& part : list) read_part(part, kind, host);
    }
    for (const Node& link : reader.optional_list("links").value_or(std::vector<Node>{}))
      read_link(link, host);
    reader.finish();
    file.kinds.push_back(std::move(host));
  }

  static void read_devices(Reader& reader, HostReference& reference) {
    if (const auto devices = reader.optional_int("devices", {1, kMaxPartCount}))
      reference.devices = as_u32(*devices);
  }

  void read_references(const std::vector<Node>& list) {
    int64_t total = 0;
    for (const Node& node : list) {
      Reader reader(node, "host", sink);
      HostReference reference{.type = reader.required_string("type"), .place = reader.span("type")};
      reference.count = as_u32(reader.required_int("count", {1, kMaxHosts}));
      read_devices(reader, reference);
      reader.finish();
      total += reference.count;
      file.references.push_back(std::move(reference));
    }
    if (total > kMaxHosts)
      sink.error(file.host_place, kOutOfRange, "{} hosts: expected 1 .. {}", total, kMaxHosts);
  }

  /// `host:` with parts, `host: NAME`, `host:` with a type, or `hosts:` with counts.
  void read_hosts(Reader& reader) {
    if (reader.has("hosts") && !reader.has("host")) {
      file.host_place = reader.span("hosts");
      file.counts_hosts = true;
      const std::vector<Node> list = reader.required_list("hosts");
      if (list.empty()) reader.error("hosts", kInconsistent, "the cluster has no host");
      return read_references(list);
    }
    file.host_place = reader.span("host");
    if (const auto node = reader.optional_node("host"); node && node->is_scalar()) {
      file.references.push_back({.type = reader.required_string("host"), .place = node->span()});
      return;
    }
    const Node node = reader.required_object("host");
    if (!node.find("type")) return read_host(node);
    Reader of_type(node, "host", sink);
    HostReference reference{.type = of_type.required_string("type"), .place = of_type.span("type")};
    read_devices(of_type, reference);
    of_type.finish();
    file.references.push_back(std::move(reference));
  }

  void require_nic(const Node& fabric) {
    for (const HostKind& kind : file.kinds) {
      if (std::ranges::count(kind.parts, VertexKind::kNic, &PartGroup::kind) > 0) continue;
      sink.add(fabric.error(kInconsistent, "the fabric has no network card to join")
                   .with_hint("list the host's network cards under 'nics:'"));
    }
  }
};

void add_kind(const HostKind& kind, uint32_t host, uint32_t first_vertex,
              TopologyBuilder& builder) {
  for (const PartGroup& part : kind.parts) {
    for (uint32_t i = 0; i < part.count; ++i) {
      std::string name = part.count == 1 ? part.name : fmt::format("{}[{}]", part.name, i);
      if (part.kind == VertexKind::kDevice) {
        builder.add_device(std::move(name), host, part.model);
      } else {
        builder.add_vertex(part.kind, std::move(name), host);
      }
    }
  }
  for (const LinkGroup& group : kind.links) {
    for (const auto& [from, to] : group.ends) {
      builder.add_duplex(VertexId(first_vertex + from), VertexId(first_vertex + to),
                         group.bytes_per_second, group.latency, group.kind);
    }
  }
}

/// Hosts that the file itself fixes: those it counts, the routers of its torus, those that hang on
/// the switches of its tree; 0: any number.
uint64_t fixed_hosts(const TopologyFile& file) {
  uint64_t total = 0;
  if (file.counts_hosts) {
    for (const HostKind& kind : file.kinds) total += kind.count;
  } else if (file.fabric && file.fabric->shape == FabricShape::kTorus) {
    total = 1;
    for (const uint32_t size : file.fabric->dimensions)
      total = std::min<uint64_t>(total * size, uint64_t{kMaxHosts} + 1);
  } else if (file.fabric && file.fabric->shape == FabricShape::kTree) {
    for (const TreeSwitch& tree : file.fabric->tree) total += tree.hosts;
  }
  return total;
}

/// How many of each kind; a file that fixes its hosts takes no other number.
Result<std::vector<uint32_t>> counts_of(const TopologyFile& file, uint32_t hosts) {
  const uint64_t fixed = fixed_hosts(file);
  if (fixed > 0 && hosts != 1 && hosts != fixed) {
    return base::fail(base::make_error(kInconsistent, "topology '{}' has {} hosts, not {}",
                                       file.name, fixed, hosts)
                          .at(file.host_place)
                          .with_hint("leave --hosts out: the file fixes their number"));
  }
  const uint64_t total = fixed > 0 ? fixed : hosts;
  if (total < 1 || total > kMaxHosts)
    return base::fail(kOutOfRange, "{} hosts: expected 1 .. {}", total, kMaxHosts);
  if (!file.counts_hosts) return std::vector{static_cast<uint32_t>(total)};
  std::vector<uint32_t> counts;
  for (const HostKind& kind : file.kinds) counts.push_back(kind.count);
  return counts;
}

}  // namespace

Result<TopologyFile> read_topology_file(const Node& root) { return FileReader().read(root); }

uint32_t device_count(const HostKind& host) {
  uint32_t devices = 0;
  for (const PartGroup& part : host.parts)
    if (part.kind == VertexKind::kDevice) devices += part.count;
  return devices;
}

void keep_devices(HostKind& host, uint32_t devices) {
  const uint32_t all = device_count(host);
  std::vector<std::optional<uint32_t>> place;  // of a vertex that stays
  uint32_t first = 0;
  for (PartGroup& part : host.parts) {
    const uint32_t kept = ceil_div(part.count * devices, all);
    for (uint32_t i = 0; i < part.count; ++i)
      place.push_back(i < kept ? std::optional(first + i) : std::nullopt);
    part.count = kept;
    part.first = first;
    first += kept;
  }
  for (LinkGroup& group : host.links) {
    std::erase_if(group.ends,
                  [&](const auto& end) { return !place[end.first] || !place[end.second]; });
    for (auto& [from, to] : group.ends) {
      from = *place[from];
      to = *place[to];
    }
  }
  std::erase_if(host.links, [](const LinkGroup& group) { return group.ends.empty(); });
}

void add_host_kind(TopologyFile& file, const TopologyFile& described, uint32_t count) {
  const auto first_model = count_of(file.models);
  file.models.insert(file.models.end(), described.models.begin(), described.models.end());
  HostKind kind = described.kinds.front();
  kind.count = count;
  for (PartGroup& part : kind.parts) part.model += first_model;
  file.kinds.push_back(std::move(kind));
  for (const std::string& note : described.source_notes) {
    if (!note.starts_with("fabric: "))
      file.source_notes.push_back(fmt::format("{}: {}", described.name, note));
  }
}

Result<Topology> build_topology(const TopologyFile& file, uint32_t hosts) {
  TRY(const std::vector<uint32_t> counts, counts_of(file, hosts));
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  if (total > 1 && !file.fabric) {
    return base::fail(base::make_error(kInconsistent,
                                       "topology '{}' has no fabric to join {} hosts", file.name,
                                       total)
                          .at(file.root_place)
                          .with_hint("add a 'fabric:' section, or use one host"));
  }
  TopologyBuilder builder(file.name);
  for (const DeviceModel& model : file.models) builder.add_model(model);
  uint32_t host = 0, first_vertex = 0;
  for (const HostKind& kind : file.kinds) {
    builder.set_host_power(host, kind.power);
    add_kind(kind, host++, first_vertex, builder);
    for (const PartGroup& part : kind.parts) first_vertex += part.count;
  }
  for (const std::string& note : file.source_notes) builder.add_source_note(note);
  Result<Topology> topology = std::move(builder).build_cluster(counts, file.fabric);
  if (topology) return topology;
  base::Diagnostics faults = std::move(topology).error();
  for (base::Diagnostic& fault : faults) fault.where = file.host_place;
  return base::fail(std::move(faults));
}

}  // namespace orrery::topologies
