#pragma once
/// A cluster with ways around: hosts of two devices on NVLink and PCIe, two cards each, leaves and
/// two spines.
#include <string>

#include "base/check.h"
#include "base/config.h"
#include "sim/scenario/scenario.h"
#include "topologies/topology.h"

namespace orrery::sim {

inline topologies::Topology ways_around(std::uint32_t hosts) {
  auto made = topologies::parse_topology(R"(
schema: orrery.topology/1
name: pairs
description: hosts of two devices
device_models:
  - {name: T100-80GB, peak_fp32: 10 TFLOP/s, peak_bf16: 100 TFLOP/s, memory_bandwidth: 1 TB/s,
     memory: 80 GiB, launch_overhead: 1 us, source: invented}
host:
  source: invented
  devices: [{name: gpu, model: T100-80GB, count: 2}]
  switches: [{name: hub}, {name: bridge}]
  nics: [{name: nic, count: 2}]
  links:
    - {from: gpu, to: hub, kind: nvlink, bandwidth_per_direction: 100 GB/s, latency: 1 us,
       source: invented}
    - {from: gpu, to: bridge, kind: pcie, bandwidth_per_direction: 20 GB/s, latency: 2 us,
       source: invented}
    - {from: nic, to: bridge, kind: pcie, bandwidth_per_direction: 20 GB/s, latency: 2 us,
       source: invented}
fabric: {name: net, shape: leaf_spine, ports_per_leaf: 4, spines: 2, paths: ecmp, kind: ib,
 bandwidth_per_direction: 5 GB/s, latency: 1 us, switch_latency: 1 us, source: invented}
)",
                                         "pairs.yaml", hosts);
  ORRERY_CHECK(made.has_value(), "{}", base::to_string(made.error()));
  return *std::move(made);
}

/// `body` after the schema.
inline base::Result<Scenario> scenario(const std::string& body,
                                       const topologies::Topology& cluster) {
  TRY(const base::Node root,
      base::Node::parse_text("schema: orrery.scenario/1\n" + body, "s.yaml"));
  return read_scenario(root, cluster);
}

inline Scenario good_scenario(const std::string& body, const topologies::Topology& cluster) {
  auto read = scenario(body, cluster);
  ORRERY_CHECK(read.has_value(), "{}", base::to_string(read.error()));
  return *std::move(read);
}

}  // namespace orrery::sim
