#include "sim/scenario/scenario.h"

#include "base/numbers.h"
#include "base/units.h"

namespace orrery::sim {

std::vector<std::uint32_t> devices_of(const std::vector<std::uint32_t>& hosts, int world,
                                      const topologies::Topology& cluster) {
  const auto each = as_int(cluster.devices_per_host());
  std::vector<std::uint32_t> devices;
  for (int rank = 0; rank < world; ++rank) {
    const int host = hosts.empty() ? rank / each : as_int(hosts[as_index(rank / each)]);
    devices.push_back(as_u32(host * each + rank % each));
  }
  return devices;
}

base::Result<std::vector<topologies::Topology>> apply_links(
    const Scenario& scenario, const topologies::Topology& cluster,
    const std::vector<std::uint32_t>& devices) {
  std::vector<topologies::Topology> changed;
  for (const Scenario::LinkEra& era : scenario.links) {
    changed.push_back(cluster.with_links(era.links));
    const auto pair = changed.back().cut_off(devices);
    if (!pair) continue;
    const std::string when =
        era.from_ps > 0 ? fmt::format("from {} on, ", base::Seconds(real(era.from_ps) / 1e12)) : "";
    return base::fail(
        base::make_error(
            base::ErrorCode::kInconsistent,
            "{}the failed links leave device {} ({}) without a route to device {} ({})", when,
            pair->first, device_name(cluster, pair->first), pair->second,
            device_name(cluster, pair->second))
            .at(scenario.links_place)
            .with_hint("the job uses both: fewer ranks, or a link that is degraded instead"));
  }
  return changed;
}

base::Result<std::vector<BackgroundFlow>> background_flows(const Scenario& scenario,
                                                           const topologies::Topology& changed) {
  std::vector<BackgroundFlow> flows;
  for (const Scenario::Background& b : scenario.background) {
    BackgroundFlow flow{b.bytes_per_second, {}};
    for (const topologies::LinkId link : changed.route(b.from, b.to))
      flow.loads.push_back({link, 1});
    if (flow.loads.empty()) {
      return base::fail_at(scenario.background_place, base::ErrorCode::kInconsistent,
                           "the failed links leave background traffic without a route from device "
                           "{} ({}) to device {} ({})",
                           b.from, device_name(changed, b.from), b.to, device_name(changed, b.to));
    }
    flows.push_back(std::move(flow));
  }
  return flows;
}

}  // namespace orrery::sim
