#include "topologies/device_order.h"

#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "base/text.h"

namespace orrery::topologies {
namespace {

const std::string& kind_of(const Topology& topology, uint32_t host) {
  return topology.device_model(host * topology.devices_per_host()).name;
}

/// Hosts in the order.
std::vector<uint32_t> hosts_in(const Topology& topology, std::span<const std::string> order) {
  std::vector<uint32_t> hosts;
  for (const std::string& kind : order) {
    for (uint32_t host = 0; host < topology.hosts(); ++host)
      if (kind_of(topology, host) == kind) hosts.push_back(host);
  }
  return hosts;
}

bool counts_up(const std::vector<uint32_t>& hosts) {
  for (uint32_t place = 0; place < hosts.size(); ++place)
    if (hosts[place] != place) return false;
  return true;
}

}  // namespace

DeviceOrder device_order(const Topology& topology) {
  DeviceOrder order;
  if (topology.device_models().size() == 1) return {topology.device_models().front().name};
  for (uint32_t host = 0; host < topology.hosts(); ++host) {
    const std::string& kind = kind_of(topology, host);
    if (std::ranges::find(order, kind) == order.end()) order.push_back(kind);
  }
  return order;
}

std::vector<DeviceOrder> device_orders(const Topology& topology) {
  const DeviceOrder first = device_order(topology);
  if (first.size() > kMostOrderedKinds) return {first};
  std::vector<std::size_t> places(first.size());
  std::iota(places.begin(), places.end(), 0);
  std::vector<DeviceOrder> all;
  do {
    DeviceOrder& order = all.emplace_back();
    for (const std::size_t place : places) order.push_back(first[place]);
  } while (std::ranges::next_permutation(places).found);
  return all;
}

bool is_in_device_order(const Topology& topology, std::span<const std::string> order) {
  const std::vector<uint32_t> hosts = hosts_in(topology, order);
  return hosts.size() == topology.hosts() && counts_up(hosts);
}

base::Result<void> check_device_order(const Topology& topology,
                                      std::span<const std::string> order) {
  if (order.empty() || is_in_device_order(topology, order)) return {};
  return base::fail(
      base::ErrorCode::kInconsistent, "the plan orders devices {}, ranks of cluster '{}' count {}",
      base::join(order, ", "), topology.name(), base::join(device_order(topology), ", "));
}

base::Result<Topology> in_device_order(const Topology& topology,
                                       std::span<const std::string> order) {
  const DeviceOrder kinds = device_order(topology);
  base::ErrorSink sink;
  for (const std::string& kind : order) {
    if (std::ranges::find(kinds, kind) == kinds.end()) {
      sink.add(base::make_error(base::ErrorCode::kNotFound, "cluster '{}' has no hosts with '{}'",
                                topology.name(), kind)
                   .with_hint(base::did_you_mean(kind, kinds, "devices")));
    } else if (std::ranges::count(order, kind) > 1) {
      sink.add(base::make_error(base::ErrorCode::kInconsistent,
                                "an order of devices names '{}' twice", kind));
    }
  }
  if (sink.ok() && order.size() != kinds.size()) {
    sink.add(base::make_error(base::ErrorCode::kInconsistent,
                              "an order of {} devices, cluster '{}' has {}", order.size(),
                              topology.name(), base::join(kinds, ", "))
                 .with_hint("name every one of them once"));
  }
  TRY_VOID(sink.result());
  const std::vector<uint32_t> hosts = hosts_in(topology, order);
  return counts_up(hosts) ? topology : topology.with_hosts_first(hosts);
}

}  // namespace orrery::topologies
