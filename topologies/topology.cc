#include "topologies/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/ids.h"
#include "base/numbers.h"
#include "topologies/routes/route_table.h"

namespace orrery::topologies {

std::string_view to_string(VertexKind kind) {
  return base::EnumNames<VertexKind::kHostBridge>("device", "switch", "nic", "host_bridge")[kind];
}

struct Topology::LazyClasses {
  std::once_flag once;
  ClusterClasses classes;
};

Topology::Topology() : classes_(std::make_shared<LazyClasses>()) {}

int64_t rate_at_ppm(int64_t bytes_per_second, int64_t ppm) {
  constexpr int64_t kMillion = 1'000'000;
  ORRERY_CHECK(ppm > 0, "links at {} ppm", ppm);
  if (ppm == kMillion) return bytes_per_second;
  const auto rate = static_cast<__int128>(bytes_per_second) * ppm / kMillion;
  ORRERY_CHECK(rate <= std::numeric_limits<int64_t>::max(), "link of {} bytes/s at {} ppm",
               bytes_per_second, ppm);
  return std::max<int64_t>(static_cast<int64_t>(rate), 1);
}

/// Every link at ppm_of(link) / 10^6 of its rate; fingerprint and routes are the caller's.
template <class Ppm>
void Topology::scale_links(const Ppm& ppm_of) {
  ORRERY_CHECK(built_rates_.empty(), "rates of links that were changed one by one");
  for (Link& link : links_)
    link.bytes_per_second = rate_at_ppm(link.bytes_per_second, ppm_of(link));
}

bool Topology::in_host(const Link& link) const {
  const uint32_t from = vertex(link.from).host;
  return from == vertex(link.to).host && from != kNoHost;
}

Topology Topology::with_link_rates(int64_t ppm, std::string_view kind) const {
  constexpr int64_t kMillion = 1'000'000;
  Topology scaled(*this);
  scaled.scale_links(
      [&](const Link& link) { return kind.empty() || link.kind == kind ? ppm : kMillion; });
  scaled.routes_ = std::make_shared<const RouteTable>(vertices(), scaled.links(), cluster_);
  scaled.fingerprint_ = base::Fingerprint().add(fingerprint_).add(ppm).add(kind).hex();
  return scaled;
}

Topology Topology::with_level_rates(int64_t hosts_ppm, int64_t fabric_ppm) const& {
  return Topology(*this).with_level_rates(hosts_ppm, fabric_ppm);
}

Topology Topology::with_level_rates(int64_t hosts_ppm, int64_t fabric_ppm) && {
  scale_links([&](const Link& link) { return in_host(link) ? hosts_ppm : fabric_ppm; });
  fingerprint_ = base::Fingerprint().add(fingerprint_).add(hosts_ppm).add(fabric_ppm).hex();
  return std::move(*this);
}

Topology Topology::with_kind_rates(
    std::span<const std::pair<std::string, int64_t>> ppm_of_kind) && {
  using Pair = std::pair<std::string, int64_t>;
  scale_links([&](const Link& link) {
    const auto known = std::ranges::find(ppm_of_kind, link.kind, &Pair::first);
    return known == ppm_of_kind.end() ? int64_t{1'000'000} : known->second;
  });
  base::Fingerprint digest;
  digest.add(fingerprint_);
  for (const auto& [kind, ppm] : ppm_of_kind) digest.add(kind).add(ppm);
  fingerprint_ = digest.hex();
  return std::move(*this);
}

Topology Topology::with_links(std::span<const LinkRate> rates) const {
  ORRERY_CHECK(built_rates_.empty(), "links are changed once");
  Topology changed(*this);
  if (rates.empty()) return changed;
  base::Fingerprint f;
  f.add(fingerprint_);
  bool failed = false;
  for (const Link& link : links_) changed.built_rates_.push_back(link.bytes_per_second);
  for (const LinkRate& rate : rates) {
    ORRERY_CHECK(rate.bytes_per_second >= 0, "link {} at {} bytes/s", rate.link.raw(),
                 rate.bytes_per_second);
    changed.links_[rate.link].bytes_per_second = rate.bytes_per_second;
    failed = failed || rate.bytes_per_second == 0;
    f.add(rate.link.raw()).add(rate.bytes_per_second);
  }
  changed.fingerprint_ = f.hex();
  if (failed)
    changed.routes_ = std::make_shared<const RouteTable>(
        routes_, Detours(vertices(), changed.links(), cluster_ != nullptr));
  changed.forget_layout();
  return changed;
}

Topology Topology::with_hosts_first(std::span<const uint32_t> hosts) const {
  std::vector<uint32_t> order(hosts.begin(), hosts.end());
  for (uint32_t h = 0; h < hosts_; ++h)
    if (std::ranges::find(hosts, h) == hosts.end()) order.push_back(h);
  ORRERY_CHECK(order.size() == hosts_, "{} hosts first make {} of {}", hosts.size(), order.size(),
               hosts_);
  Topology changed(*this);
  base::Fingerprint f;
  f.add(fingerprint_);
  for (uint32_t place = 0; place < hosts_; ++place) {
    f.add(order[place]);
    for (uint32_t i = 0; i < devices_per_host_; ++i) {
      const uint32_t to = place * devices_per_host_ + i,
                     from = order[place] * devices_per_host_ + i;
      changed.devices_[to] = devices_[from];
      changed.device_models_[to] = device_models_[from];
    }
  }
  changed.fingerprint_ = f.hex();
  changed.forget_layout();
  return changed;
}

void Topology::forget_layout() {
  host_copies_.reset();
  cluster_.reset();
  classes_.reset();
}

bool Topology::detoured(uint32_t from_rank, uint32_t to_rank) const {
  return routes_->detoured(device(from_rank), device(to_rank));
}

std::optional<std::pair<uint32_t, uint32_t>> Topology::cut_off(
    std::span<const uint32_t> ranks) const {
  if (routes_->detours() == nullptr) return std::nullopt;
  std::vector<VertexId> vertices;
  for (const uint32_t rank : ranks) vertices.push_back(device(rank));
  const auto pair = routes_->detours()->cut_off(vertices);
  if (!pair) return std::nullopt;
  const auto rank_of = [&](VertexId v) {
    return ranks[as_index(std::ranges::find(vertices, v) - vertices.begin())];
  };
  return std::pair{rank_of(pair->first), rank_of(pair->second)};
}

VertexId Topology::device(uint32_t rank) const {
  ORRERY_CHECK(rank < devices_.size(), "rank {} of {}", rank, devices_.size());
  return devices_[rank];
}

const DeviceModel& Topology::device_model(uint32_t rank) const {
  ORRERY_CHECK(rank < device_models_.size(), "rank {} of {}", rank, device_models_.size());
  return models_[device_models_[rank]];
}

uint32_t Topology::host_of(uint32_t rank) const { return vertex(device(rank)).host; }

std::span<const LinkId> Topology::route(uint32_t from_rank, uint32_t to_rank) const {
  return routes_->find(device(from_rank), device(to_rank));
}

void Topology::append_route(uint32_t from_rank, uint32_t to_rank, std::vector<LinkId>& path) const {
  routes_->append(device(from_rank), device(to_rank), path);
}

std::span<const LinkId> Topology::path(VertexId from, VertexId to) const {
  ORRERY_CHECK(from.raw() < vertices_.size() && to.raw() < vertices_.size());
  return routes_->find(from, to);
}

const ClusterClasses& Topology::classes() const {
  std::call_once(classes_->once, [&] { classes_->classes = cluster_->classes(); });
  return classes_->classes;
}

uint32_t Topology::vertex_classes() const {
  return cluster_ ? classes().vertex_classes : count_of(vertices_);
}

uint32_t Topology::link_classes() const {
  return cluster_ ? classes().link_classes : count_of(links_);
}

uint32_t Topology::vertex_class(VertexId id) const {
  const Vertex& v = vertex(id);
  if (!cluster_) return id.raw();
  if (v.host == kNoHost) return classes().of_switch[id.raw() - cluster_->fabric_vertex];
  const HostRun& run = cluster_->run_of_host(v.host);
  return classes().host_vertex[classes().of_host[v.host]] +
         (id.raw() - run.first_vertex) % run.vertices;
}

uint32_t Topology::link_class(LinkId id) const {
  if (!cluster_) return id.raw();
  if (id.raw() >= cluster_->fabric_link) return classes().of_link[id.raw() - cluster_->fabric_link];
  const HostRun& run = cluster_->run_of_link(id.raw());
  const uint32_t offset = id.raw() - run.first_link;
  return classes().host_link[classes().of_host[run.first_host + offset / run.links]] +
         offset % run.links;
}

std::string device_name(const Topology& topology, uint32_t rank) {
  return fmt::format("{} of host {}", topology.vertex(topology.device(rank)).name,
                     topology.host_of(rank));
}

std::string link_name(const Topology& topology, LinkId id) {
  const auto& link = topology.link(id);
  const auto& from = topology.vertex(link.from);
  const auto& to = topology.vertex(link.to);
  const uint32_t host = from.host != kNoHost ? from.host : to.host;
  const std::string place = host == kNoHost ? "" : fmt::format(" (host {})", host);
  return fmt::format("{} -> {}{}", from.name, to.name, place);
}

}  // namespace orrery::topologies
