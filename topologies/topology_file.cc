#include "topologies/topology_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "base/text.h"
#include "topologies/link_ends.h"

namespace orrery::topologies {

using base::ErrorCode;
using base::ErrorSink;
using base::Node;
using base::Reader;
using base::Result;

namespace {

constexpr std::string_view kSchema = "orrery.topology/1";
constexpr int64_t kMaxPartCount = 4096;  // a host, not a cluster
constexpr int64_t kMaxLinkCount = 1024;

enum class Pairing { kAll, kByIndex };
constexpr std::array<base::Named<Pairing>, 2> kPairings = {{{"all", Pairing::kAll}, {"by_index", Pairing::kByIndex}}};

/// Capacities are whole bytes per second; a datasheet's decimal fraction is exact to far better than half a byte.
int64_t whole_bytes_per_second(base::BytesPerSecond bandwidth) { return std::llround(bandwidth.raw()); }

/// One fault per capacity below 1 B/s or beyond what int64 and a double hold exactly.
int64_t read_capacity(Reader& reader, std::string_view key, int64_t lanes) {
  const base::BytesPerSecond bandwidth = reader.required_bandwidth(key);
  if (bandwidth.raw() == 0) return 1;  // already a fault
  const double total = bandwidth.raw() * static_cast<double>(lanes);
  if (total < 1 || total > 9e15) {
    reader.error(key, ErrorCode::kOutOfRange, "capacity of {} B/s is outside 1 B/s .. 9000 TB/s", total);
    return 1;
  }
  return whole_bytes_per_second(bandwidth) * lanes;
}

/// Latencies and overheads: at most a second, far inside the simulator's range of time.
base::Seconds read_delay(Reader& reader, std::string_view key) {
  const base::Seconds delay = reader.required_seconds(key);
  if (delay.raw() <= 1) return delay;
  reader.error(key, ErrorCode::kOutOfRange, "{} of {} is more than one second", key, delay);
  return base::Seconds(0);
}

int64_t read_memory(Reader& reader, std::string_view key) {
  if (!reader.has(key)) return static_cast<int64_t>(reader.required_bytes(key).raw());  // the fault of absence
  const auto value = reader.optional_bytes(key);
  if (!value) return 0;
  const double bytes = value->raw();
  if (bytes >= 1 && bytes <= 9e15) return static_cast<int64_t>(bytes);
  reader.error(key, ErrorCode::kOutOfRange, "memory of {} B is outside 1 B .. 9 PB", bytes);
  return 0;
}

bool is_part_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

/// Also remembers the source as a note of the topology.
std::string read_source(Reader& reader, std::string_view of, TopologyFile& file) {
  std::string source = reader.required_string("source");
  if (!source.empty()) file.source_notes.push_back(fmt::format("{}: {}", of, source));
  return source;
}

void read_model(const Node& node, TopologyFile& file, ErrorSink& sink) {
  Reader reader(node, "device model", sink);
  DeviceModel model;
  model.name = reader.required_string("name");
  model.peak_fp32 = reader.required_flops_rate("peak_fp32");
  model.peak_bf16 = reader.required_flops_rate("peak_bf16");
  model.memory_bandwidth = reader.required_bandwidth("memory_bandwidth");
  model.memory_bytes = read_memory(reader, "memory");
  model.launch_overhead = read_delay(reader, "launch_overhead");
  model.source = read_source(reader, fmt::format("device model {}", model.name), file);
  reader.finish();
  const auto same = [&](const DeviceModel& other) { return other.name == model.name; };
  if (std::any_of(file.models.begin(), file.models.end(), same)) {
    reader.error("name", ErrorCode::kInconsistent, "device model '{}' is defined twice", model.name);
  }
  file.models.push_back(std::move(model));
}

uint32_t find_model(Reader& reader, const TopologyFile& file) {
  const std::string name = reader.required_string("model");
  if (name.empty()) return 0;
  std::vector<std::string> names;
  for (const DeviceModel& model : file.models) names.push_back(model.name);
  const auto it = std::find(names.begin(), names.end(), name);
  if (it != names.end()) return static_cast<uint32_t>(it - names.begin());
  base::Diagnostic fault = base::make_error(ErrorCode::kNotFound, "no device model '{}' in device_models", name);
  fault.where = reader.span("model");
  fault.hint = base::did_you_mean(name, names, "device models");
  reader.sink().add(std::move(fault));
  return 0;
}

void read_part(const Node& node, VertexKind kind, TopologyFile& file, ErrorSink& sink) {
  Reader reader(node, std::string(to_string(kind)), sink);
  PartGroup part;
  part.kind = kind;
  part.name = reader.required_string("name");
  part.count = static_cast<uint32_t>(reader.optional_int("count", {1, kMaxPartCount}).value_or(1));
  if (kind == VertexKind::kDevice) part.model = find_model(reader, file);
  reader.finish();
  if (!part.name.empty() && !is_part_name(part.name)) {
    reader.error("name", ErrorCode::kBadValue, "part name '{}' has characters other than letters, digits, '_' and '-'",
                 part.name);
  }
  const auto same = [&](const PartGroup& other) { return other.name == part.name; };
  if (std::any_of(file.parts.begin(), file.parts.end(), same)) {
    reader.error("name", ErrorCode::kInconsistent, "part '{}' is defined twice", part.name);
  }
  if (!file.parts.empty()) part.first = file.parts.back().first + file.parts.back().count;
  file.parts.push_back(std::move(part));
}

void read_link(const Node& node, TopologyFile& file, ErrorSink& sink) {
  Reader reader(node, "link", sink);
  LinkGroup group;
  const std::vector<uint32_t> from = read_end(reader, "from", file.parts);
  const std::vector<uint32_t> to = read_end(reader, "to", file.parts);
  const Pairing pairing = reader.optional_enum("pairing", kPairings).value_or(Pairing::kAll);
  group.kind = reader.required_string("kind");
  const int64_t lanes = reader.optional_int("count", {1, kMaxLinkCount}).value_or(1);
  group.bytes_per_second = read_capacity(reader, "bandwidth_per_direction", lanes);
  group.latency = read_delay(reader, "latency");
  read_source(reader, fmt::format("{} links", group.kind), file);
  reader.finish();
  if (from.empty() || to.empty()) return;
  if (pairing == Pairing::kByIndex && from.size() != to.size()) {
    reader.error("pairing", ErrorCode::kInconsistent,
                 "pairing by_index joins {} parts to {}: the numbers must be equal", from.size(), to.size());
    return;
  }
  group.ends = pairing == Pairing::kByIndex ? pair_by_index(from, to) : pair_all(from, to);
  if (group.ends.empty()) {
    reader.error("to", ErrorCode::kInconsistent, "link joins a part to itself and nothing else");
  }
  file.links.push_back(std::move(group));
}

void read_host(const Node& node, TopologyFile& file, ErrorSink& sink) {
  Reader reader(node, "host", sink);
  file.host_place = node.span();
  file.source = read_source(reader, "host", file);
  constexpr std::array<std::pair<std::string_view, VertexKind>, 4> kLists = {{
      {"devices", VertexKind::kDevice},
      {"switches", VertexKind::kSwitch},
      {"host_bridges", VertexKind::kHostBridge},
      {"nics", VertexKind::kNic},
  }};
  for (const auto& [key, kind] : kLists) {
    const bool devices = kind == VertexKind::kDevice;
    const std::vector<Node> list =
        devices ? reader.required_list(key) : reader.optional_list(key).value_or(std::vector<Node>{});
    if (devices && reader.has(key) && list.empty()) {
      reader.error(key, ErrorCode::kInconsistent, "host has no device");
    }
    for (const Node& part : list) read_part(part, kind, file, sink);
  }
  for (const Node& link : reader.optional_list("links").value_or(std::vector<Node>{})) read_link(link, file, sink);
  reader.finish();
}

void read_fabric(const Node& node, TopologyFile& file, ErrorSink& sink) {
  Reader reader(node, "fabric", sink);
  SwitchedFabric fabric;
  fabric.name = reader.required_string("name");
  fabric.kind = reader.required_string("kind");
  fabric.bytes_per_second = read_capacity(reader, "bandwidth_per_direction", 1);
  fabric.latency = read_delay(reader, "latency");
  read_source(reader, "fabric", file);
  reader.finish();
  const auto is_nic = [](const PartGroup& part) { return part.kind == VertexKind::kNic; };
  if (std::none_of(file.parts.begin(), file.parts.end(), is_nic)) {
    base::Diagnostic fault = node.error(ErrorCode::kInconsistent, "the fabric has no network card to join");
    fault.hint = "list the host's network cards under 'nics:'";
    sink.add(std::move(fault));
  }
  file.fabric = std::move(fabric);
}

}  // namespace

Result<TopologyFile> read_topology_file(const Node& root) {
  ErrorSink sink;
  TopologyFile file;
  file.root_place = root.span();
  Reader reader(root, "topology", sink);
  const std::string schema = reader.required_string("schema");
  if (!schema.empty() && schema != kSchema) {
    reader.error("schema", ErrorCode::kUnsupported, "schema '{}' is not '{}'", schema, kSchema);
  }
  file.name = reader.required_string("name");
  file.description = reader.required_string("description");
  for (const Node& model : reader.required_list("device_models")) read_model(model, file, sink);
  read_host(reader.required_object("host"), file, sink);
  if (const auto fabric = reader.optional_object("fabric")) read_fabric(*fabric, file, sink);
  reader.finish();
  return sink.result(std::move(file));
}

Result<Topology> build_topology(const TopologyFile& file, uint32_t hosts) {
  if (hosts < 1 || hosts > kMaxHosts) {
    return base::fail(ErrorCode::kOutOfRange, "{} hosts: expected 1 .. {}", hosts, kMaxHosts);
  }
  if (hosts > 1 && !file.fabric) {
    base::Diagnostic fault =
        base::make_error(ErrorCode::kInconsistent, "topology '{}' has no fabric to join {} hosts", file.name, hosts);
    fault.where = file.root_place;
    fault.hint = "add a 'fabric:' section, or use one host";
    return base::fail(std::move(fault));
  }
  TopologyBuilder builder(file.name);
  for (const DeviceModel& model : file.models) builder.add_model(model);
  for (const PartGroup& part : file.parts) {
    for (uint32_t i = 0; i < part.count; ++i) {
      std::string name = part.count == 1 ? part.name : fmt::format("{}[{}]", part.name, i);
      if (part.kind == VertexKind::kDevice) {
        builder.add_device(std::move(name), 0, part.model);
      } else {
        builder.add_vertex(part.kind, std::move(name), 0);
      }
    }
  }
  for (const LinkGroup& group : file.links) {
    for (const auto& [from, to] : group.ends) {
      builder.add_duplex(VertexId(from), VertexId(to), group.bytes_per_second, group.latency, group.kind);
    }
  }
  for (const std::string& note : file.source_notes) builder.add_source_note(note);
  Result<Topology> topology = std::move(builder).build_copies(hosts, file.fabric);
  if (topology) return topology;
  base::Diagnostics faults = std::move(topology).error();
  for (base::Diagnostic& fault : faults) fault.where = file.host_place;
  return base::fail(std::move(faults));
}

}  // namespace orrery::topologies
