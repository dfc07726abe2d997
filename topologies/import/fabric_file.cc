#include "topologies/import/fabric_file.h"

#include <map>
#include <utility>

#include "base/numbers.h"
#include "topologies/fabric/fabric_tree.h"
#include "topologies/import/file_values.h"

namespace orrery::topologies {

using enum FabricShape;
using enum base::ErrorCode;
using base::Reader;

namespace {

std::vector<base::Named<FabricShape>> shapes() {
  std::vector<base::Named<FabricShape>> rows;
  for (int i = 0; i <= as_int(kTorus); ++i)
    rows.push_back({to_string(FabricShape(i)), FabricShape(i)});
  return rows;
}
std::vector<base::Named<PathChoice>> path_choices() {
  std::vector<base::Named<PathChoice>> rows;
  for (const PathChoice paths : {PathChoice::kFluid, PathChoice::kEcmp, PathChoice::kHashed})
    rows.push_back({to_string(paths), paths});
  return rows;
}
constexpr int64_t kMaxPorts = 4096;  // of one switch
constexpr int64_t kMaxTorusSide = 65'536;

uint32_t read_count(Reader& reader, std::string_view key) {
  const int64_t count = reader.required_int(key, {1, kMaxPorts});
  return count < 1 ? 1 : as_u32(count);  // 0 after a fault
}

void read_clos(Reader& reader, FabricSpec& spec) {
  spec.oversubscription = reader.optional_double("oversubscription", {1, 1000}).value_or(1);
  // Ethernet's switches hash, InfiniBand's route adaptively
  const PathChoice usual = spec.kind == "roce" ? PathChoice::kHashed : PathChoice::kFluid;
  spec.paths = reader.optional_enum("paths", path_choices()).value_or(usual);
  if (spec.paths == PathChoice::kFluid) return;
  if (spec.paths == PathChoice::kHashed) {
    spec.queue_pairs = real(reader.optional_int("queue_pairs", {1, kMaxPorts}).value_or(2));
    return;
  }
  spec.ecmp_seed = static_cast<uint64_t>(
      reader.optional_int("ecmp_seed", {0, std::numeric_limits<int64_t>::max()}).value_or(0));
  if (spec.shape != kFatTree) spec.spines = read_count(reader, "spines");
}

/// Parents come later in the list than their switches are named, or earlier: names are resolved at
/// the end. A switch that nobody names is the root; there is one, and every switch has its hosts or
/// its switches.
void read_tree(Reader& reader, FabricSpec& spec) {
  std::map<std::string, uint32_t> index;
  std::vector<std::pair<base::Node, std::vector<std::string>>> below;
  for (const base::Node& node : reader.required_list("switches")) {
    Reader entry(node, "switch", reader.sink());
    TreeSwitch s{.name = entry.required_string("name")};
    s.hosts = as_u32(entry.optional_int("hosts", {0, 1 << 16}).value_or(0));
    if (entry.has("uplink_bandwidth_per_direction"))
      s.uplink_bytes_per_second = read_capacity(entry, "uplink_bandwidth_per_direction", 1);
    below.emplace_back(node, entry.has("switches") ? entry.required_strings("switches")
                                                   : std::vector<std::string>{});
    if (!s.name.empty() && s.hosts == 0 && below.back().second.empty())
      entry.error("name", kInconsistent, "switch '{}' has neither hosts nor switches", s.name);
    if (!s.name.empty() && !index.try_emplace(s.name, count_of(spec.tree)).second) {
      entry.error("name", kInconsistent, "switch '{}' is defined twice", s.name);
    }
    entry.finish();
    spec.tree.push_back(std::move(s));
  }
  for (uint32_t parent = 0; parent < below.size(); ++parent) {
    for (const std::string& name : below[parent].second) {
      const auto child = index.find(name);
      if (child == index.end()) {
        reader.sink().add(below[parent].first.error(kNotFound, "no switch '{}'", name));
      } else if (spec.tree[child->second].parent != kNoSwitch) {
        reader.sink().add(
            below[parent].first.error(kInconsistent, "switch '{}' hangs on two switches", name));
      } else {
        spec.tree[child->second].parent = parent;
      }
    }
  }
  for (const std::string& fault : faults_of_tree(spec.tree))
    reader.error("switches", kInconsistent, "{}", fault);
}

void read_torus(Reader& reader, FabricSpec& spec) {
  for (const int64_t size : reader.required_ints("dimensions", {1, kMaxTorusSide})) {
    spec.dimensions.push_back(as_u32(size));
  }
  if (reader.has("dimensions") && (spec.dimensions.empty() || spec.dimensions.size() > 3)) {
    reader.error("dimensions", kOutOfRange, "a torus has 1 to 3 dimensions, not {}",
                 spec.dimensions.size());
  }
  spec.local_bytes_per_second = read_capacity(reader, "link_bandwidth_per_direction", 1);
}

void read_shape(Reader& reader, FabricSpec& spec) {
  switch (spec.shape) {
    case kSwitch: return;
    case kLeafSpine:
      spec.ports_per_leaf = read_count(reader, "ports_per_leaf");
      return read_clos(reader, spec);
    case kRailOptimised:
      spec.hosts_per_leaf = read_count(reader, "hosts_per_leaf");
      return read_clos(reader, spec);
    case kFatTree: spec.radix = read_count(reader, "radix"); return read_clos(reader, spec);
    case kTree: return read_tree(reader, spec);
    case kDragonfly:
      spec.routers_per_group = read_count(reader, "routers_per_group");
      spec.ports_per_router = read_count(reader, "ports_per_router");
      spec.global_links_per_router = read_count(reader, "global_links_per_router");
      spec.local_bytes_per_second = read_capacity(reader, "local_bandwidth_per_direction", 1);
      spec.global_bytes_per_second = read_capacity(reader, "global_bandwidth_per_direction", 1);
      return;
    case kTorus: return read_torus(reader, spec);
  }
}

}  // namespace

FabricSpec read_fabric(const base::Node& node, std::vector<std::string>& notes,
                       base::ErrorSink& sink) {
  Reader reader(node, "fabric", sink);
  FabricSpec spec;
  spec.name = reader.required_string("name");
  spec.shape = reader.optional_enum("shape", shapes()).value_or(kSwitch);
  spec.kind = reader.required_string("kind");
  spec.bytes_per_second = read_capacity(reader, "bandwidth_per_direction", 1);
  spec.latency = read_delay(reader, "latency");
  if (spec.shape != kSwitch) spec.switch_latency = read_delay(reader, "switch_latency");
  read_shape(reader, spec);
  spec.device_power = reader.optional_power("device_power").value_or(base::Watts());
  const std::string source = reader.required_string("source");
  if (!source.empty()) notes.push_back("fabric: " + source);
  reader.finish();
  return spec;
}

}  // namespace orrery::topologies
