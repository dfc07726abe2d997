#include "topologies/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/ids.h"
#include "base/numbers.h"
#include "topologies/host_templates.h"
#include "topologies/routes/route_table.h"

namespace orrery::topologies {

using enum base::ErrorCode;
using base::Result;

namespace {

/// "gpu[3] of host 2"
std::string label(const Vertex& vertex) {
  return vertex.host == kNoHost ? vertex.name
                                : fmt::format("{} of host {}", vertex.name, vertex.host);
}

std::string fingerprint_of(const Topology& t, std::span<const uint32_t> device_models,
                           std::span<const uint64_t> routing) {
  base::Fingerprint f;
  f.add("orrery.topology").add(t.name()).add(t.hosts()).add(t.devices_per_host());
  f.add(t.device_models().size());
  for (const DeviceModel& m : t.device_models()) {
    f.add(m.name).add(m.peak_fp32.raw()).add(m.peak_bf16.raw()).add(m.memory_bandwidth.raw());
    if (m.peak_fp8.raw() > 0) f.add(m.peak_fp8.raw()).add(m.peak_fp4.raw());
    f.add(m.memory_bytes).add(m.launch_overhead.raw()).add(m.power.raw());
  }
  for (const uint32_t model : device_models) f.add(model);
  f.add(t.vertices().size());
  for (const Vertex& v : t.vertices()) f.add(as_int(v.kind)).add(v.name).add(v.host);
  f.add(t.links().size());
  for (const Link& l : t.links()) {
    f.add(l.from.raw()).add(l.to.raw()).add(l.bytes_per_second).add(l.latency.raw()).add(l.kind);
  }
  for (const uint64_t word : routing) f.add(word);
  return f.hex();
}

}  // namespace

TopologyBuilder::TopologyBuilder(std::string name) { topology_.name_ = std::move(name); }

uint32_t TopologyBuilder::add_model(DeviceModel model) {
  topology_.models_.push_back(std::move(model));
  return count_of(topology_.models_) - 1;
}

VertexId TopologyBuilder::add(VertexKind kind, std::string name, uint32_t host, uint32_t model) {
  vertex_models_.push_back(model);
  return topology_.vertices_.push_back({kind, std::move(name), host});
}

VertexId TopologyBuilder::add_device(std::string name, uint32_t host, uint32_t model) {
  ORRERY_CHECK(model < topology_.models_.size() && host != kNoHost);
  return add(VertexKind::kDevice, std::move(name), host, model);
}

VertexId TopologyBuilder::add_vertex(VertexKind kind, std::string name, uint32_t host) {
  ORRERY_CHECK(kind != VertexKind::kDevice, "devices have a model: add_device");
  return add(kind, std::move(name), host, kNoModel);
}

LinkId TopologyBuilder::add_link(VertexId from, VertexId to, int64_t bytes_per_second,
                                 base::Seconds latency, std::string kind) {
  ORRERY_CHECK(topology_.vertices_.contains(from) && topology_.vertices_.contains(to) && from != to,
               "link {} -> {} of {}", from.raw(), to.raw(), topology_.vertices_.size());
  ORRERY_CHECK(bytes_per_second > 0 && latency.raw() >= 0);
  return topology_.links_.push_back({from, to, bytes_per_second, latency, std::move(kind)});
}

void TopologyBuilder::add_duplex(VertexId from, VertexId to, int64_t bytes_per_second,
                                 base::Seconds latency, const std::string& kind) {
  add_link(from, to, bytes_per_second, latency, kind);
  add_link(to, from, bytes_per_second, latency, kind);
}

void TopologyBuilder::add_source_note(std::string note) {
  topology_.source_notes_.push_back(std::move(note));
}

void TopologyBuilder::set_host_power(uint32_t host, base::Watts power) {
  ORRERY_CHECK(power.raw() >= 0);
  if (host >= host_powers_.size()) host_powers_.resize(host + 1);
  host_powers_[host] = power;
}

namespace {

/// Of a cluster of one kind of host.
std::optional<HostCopies> copies_in(const ClusterShape& shape) {
  const HostRun& run = shape.runs.front();
  HostCopies copies{{{1, 0, run.links}}};
  if (shape.hosts == 1) return copies;
  const auto above = shape.fabric->levels(count_of(run.nics));
  if (!above) return std::nullopt;
  for (CopyLevel level : *above) {
    level.first_link += shape.fabric_link;
    copies.levels.push_back(level);
  }
  return copies;
}

}  // namespace

Result<Topology> TopologyBuilder::build_cluster(std::span<const uint32_t> counts,
                                                const std::optional<FabricSpec>& fabric) && {
  uint64_t hosts = 0;
  for (const uint32_t count : counts) {
    ORRERY_CHECK(count >= 1);
    hosts += count;
  }
  ORRERY_CHECK(hosts == 1 || fabric.has_value());
  if (hosts > std::numeric_limits<uint32_t>::max())
    return base::fail(kOutOfRange, "{} hosts", hosts);
  Templates templates(topology_.vertices(), vertex_models_, topology_.links(), counts.size());
  TRY(auto shape, templates.lay_out(counts));
  if (hosts > 1) {
    std::vector<NicRun> nics;
    for (const HostRun& run : shape.runs) nics.push_back({run.hosts, count_of(run.nics)});
    TRY(shape.fabric, make_fabric(*fabric, nics));
    shape.spec = *fabric;
    topology_.fabric_power_per_device_ = fabric->device_power;
  }
  topology_.vertices_ = {};
  topology_.links_ = {};
  vertex_models_.clear();
  templates.replicate(shape, fabric, topology_.vertices_, vertex_models_, topology_.links_);
  if (counts.size() == 1) topology_.host_copies_ = copies_in(shape);
  if (shape.fabric && fabric->shape != FabricShape::kSwitch) {
    routing_ = {static_cast<uint64_t>(fabric->shape), static_cast<uint64_t>(fabric->paths),
                fabric->ecmp_seed};
  }
  host_powers_.resize(counts.size());
  std::vector<base::Watts> powers;
  for (size_t kind = 0; kind < counts.size(); ++kind)
    powers.insert(powers.end(), counts[kind], host_powers_[kind]);
  host_powers_ = std::move(powers);
  topology_.cluster_ = std::make_shared<const ClusterShape>(std::move(shape));
  return std::move(*this).build();
}

Result<void> TopologyBuilder::assign_ranks() {
  std::vector<VertexId> devices;
  uint32_t hosts = 0;
  for (const VertexId v : topology_.vertices_.ids()) {
    const Vertex& vertex = topology_.vertex(v);
    if (vertex.host != kNoHost) hosts = std::max(hosts, vertex.host + 1);
    if (vertex.kind == VertexKind::kDevice) devices.push_back(v);
  }
  if (devices.empty())
    return base::fail(kInconsistent, "topology '{}' has no device", topology_.name_);

  const base::Csr by_host = base::group_by(
      count_of(devices), hosts, [&](uint32_t i) { return topology_.vertex(devices[i]).host; });
  for (uint32_t h = 0; h < hosts; ++h) {
    if (by_host.of(h).size() == by_host.of(0).size()) continue;
    return base::fail(kInconsistent,
                      "host {} has {} devices and host 0 has {}: hosts must have equally many", h,
                      by_host.of(h).size(), by_host.of(0).size());
  }
  topology_.hosts_ = hosts;
  host_powers_.resize(hosts);
  topology_.host_powers_ = std::move(host_powers_);
  topology_.devices_per_host_ = count_of(by_host.of(0));
  for (const uint32_t i : by_host.items) {
    topology_.devices_.push_back(devices[i]);
    topology_.device_models_.push_back(vertex_models_[devices[i].raw()]);
  }
  return {};
}

Result<void> TopologyBuilder::check_reachable() const {
  const auto pair = topology_.routes_->unreachable_devices();
  if (!pair) return {};
  return base::fail(base::make_error(kInconsistent, "device {} cannot reach device {}",
                                     label(topology_.vertex(pair->first)),
                                     label(topology_.vertex(pair->second)))
                        .with_hint("devices do not forward: join them by links or switches"));
}

Result<Topology> TopologyBuilder::build() && {
  TRY_VOID(assign_ranks());
  Topology& t = topology_;
  t.routes_ = std::make_shared<const RouteTable>(t.vertices(), t.links(), t.cluster_);
  TRY_VOID(check_reachable());
  t.fingerprint_ = fingerprint_of(t, t.device_models_, routing_);
  return std::move(topology_);
}

}  // namespace orrery::topologies
