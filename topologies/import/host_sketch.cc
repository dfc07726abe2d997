#include "topologies/import/host_sketch.h"

#include <algorithm>
#include <array>

#include "base/numbers.h"

namespace orrery::topologies {

using enum VertexKind;

FabricSpec core_fabric(int64_t bytes_per_second) {
  return {.name = "core",
          .kind = "network",
          .bytes_per_second = bytes_per_second,
          .latency = base::Seconds(0.35 / 1e6)};
}

uint32_t HostSketch::add(VertexKind kind, const std::string& name) {
  parts_.push_back({kind, name, counts_[name]++});
  return as_u32(parts_.size() - 1);
}

void HostSketch::join(uint32_t a, uint32_t b, const std::string& kind, int64_t bytes_per_second,
                      base::Seconds latency, const std::string& source) {
  joins_.push_back(
      {a,
       b,
       {.kind = kind, .bytes_per_second = bytes_per_second, .latency = latency, .source = source}});
}

uint32_t HostSketch::count(const std::string& name) const {
  const auto it = counts_.find(name);
  return it == counts_.end() ? 0 : it->second;
}

HostKind HostSketch::finish() const {
  HostKind host;
  std::map<std::string, uint32_t> first;
  uint32_t next = 0;
  for (const VertexKind kind : {kDevice, kSwitch, kHostBridge, kNic}) {
    for (const HostPart& part : parts_) {
      if (part.kind != kind || part.index != 0) continue;
      host.parts.push_back(
          {.kind = kind, .name = part.name, .count = counts_.at(part.name), .first = next});
      first[part.name] = next;
      next += counts_.at(part.name);
    }
  }
  const auto vertex = [&](uint32_t handle) {
    return first.at(parts_[handle].name) + parts_[handle].index;
  };
  for (const Join& join : joins_) {
    const auto same = [&](const LinkGroup& g) {
      return g.kind == join.group.kind && g.bytes_per_second == join.group.bytes_per_second &&
             g.latency == join.group.latency && g.source == join.group.source;
    };
    auto group = std::ranges::find_if(host.links, same);
    if (group == host.links.end()) group = host.links.insert(group, join.group);
    group->ends.emplace_back(vertex(join.a), vertex(join.b));
  }
  return host;
}

}  // namespace orrery::topologies
