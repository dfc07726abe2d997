// The reader of scenarios over arbitrary bytes: a scenario that fits its cluster, or diagnostics
// with a place.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/config.h"
#include "sim/scenario/scenario.h"

namespace {

const orrery::topologies::Topology& cluster() {
  static const orrery::topologies::Topology kCluster = [] {
    auto made = orrery::topologies::parse_topology(
        R"({"schema": "orrery.topology/1", "name": "two", "description": "two hosts of two devices",
      "device_models": [{"name": "D", "peak_fp32": "10 TFLOP/s", "peak_bf16": "100 TFLOP/s",
       "memory_bandwidth": "1 TB/s", "memory": "16 GiB", "launch_overhead": "5 us",
       "source": "invented"}],
      "host": {"source": "invented", "devices": [{"name": "gpu", "model": "D", "count": 2}],
       "switches": [{"name": "hub"}], "nics": [{"name": "nic", "count": 2}],
       "links": [{"from": "gpu", "to": "hub", "kind": "nvlink",
         "bandwidth_per_direction": "100 GB/s", "latency": "1 us", "source": "invented"},
        {"from": "nic", "to": "hub", "kind": "pcie",
         "bandwidth_per_direction": "10 GB/s", "latency": "1 us", "source": "invented"}]},
      "fabric": {"name": "net", "kind": "ib", "bandwidth_per_direction": "10 GB/s",
       "latency": "1 us", "source": "invented"}})",
        "two.json", 2);
    ORRERY_CHECK(made.has_value(), "{}", orrery::base::to_string(made.error()));
    return *std::move(made);
  }();
  return kCluster;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const auto root = base::Node::parse_text(
      std::string_view(reinterpret_cast<const char*>(data), size), "input.yaml");
  if (!root) return 0;
  const auto scenario = sim::read_scenario(*root, cluster());
  if (!scenario) {
    ORRERY_CHECK(!scenario.error().empty() && scenario.error().front().where.file == "input.yaml",
                 "{}", base::to_string(scenario.error()));
    return 0;
  }
  ORRERY_CHECK(scenario->compute_ppm.empty() ||
               scenario->compute_ppm.size() == cluster().device_count());
  for (const std::int64_t ppm : scenario->compute_ppm)
    ORRERY_CHECK(ppm >= 1'000'000 && ppm <= 1'000'000'000);
  const auto changed = sim::apply_links(*scenario, cluster(), {0, 1, 2, 3});
  if (!changed) return 0;
  ORRERY_CHECK(changed->size() == scenario->links.size() && scenario->links.front().from_ps == 0);
  for (const orrery::topologies::Topology& machine : *changed) {
    for (std::uint32_t a = 0; a < 4; ++a)
      for (std::uint32_t b = 0; b < 4; ++b) ORRERY_CHECK(a == b || !machine.route(a, b).empty());
    const auto flows = sim::background_flows(*scenario, machine);
    ORRERY_CHECK(flows.has_value() && flows->size() == scenario->background.size());
  }
  return 0;
}
