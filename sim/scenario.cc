#include "sim/scenario.h"

#include "base/check.h"

namespace orrery::sim {

base::Result<topologies::Topology> apply_links(const Scenario& scenario, const topologies::Topology& cluster,
                                               const std::vector<std::uint32_t>& ranks) {
  topologies::Topology changed = cluster.with_links(scenario.links);
  if (const auto pair = changed.cut_off(ranks)) {
    base::Diagnostic d = base::make_error(base::ErrorCode::kInconsistent, "the failed links leave device {} ({}) without a route to device {} ({})",
                                          pair->first, device_name(cluster, pair->first), pair->second, device_name(cluster, pair->second));
    d.where = scenario.links_place;
    d.hint = "the job uses both: fewer ranks, or a link that is degraded instead";
    return base::fail(std::move(d));
  }
  return changed;
}

base::Result<std::vector<BackgroundFlow>> background_flows(const Scenario& scenario, const topologies::Topology& changed) {
  std::vector<BackgroundFlow> flows;
  for (const Scenario::Background& b : scenario.background) {
    BackgroundFlow flow{b.bytes_per_second, {}};
    for (const topologies::LinkId link : changed.route(b.from, b.to)) flow.loads.push_back({link, 1});
    if (flow.loads.empty()) {
      return base::fail_at(scenario.background_place, base::ErrorCode::kInconsistent,
                           "the failed links leave background traffic without a route from device {} ({}) to device {} ({})",
                           b.from, device_name(changed, b.from), b.to, device_name(changed, b.to));
    }
    flows.push_back(std::move(flow));
  }
  return flows;
}

}  // namespace orrery::sim
