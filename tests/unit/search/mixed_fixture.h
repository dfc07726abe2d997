#pragma once
/// A cluster of two kinds of host, so small that whole plans can be enumerated.
#include <gtest/gtest.h>

#include <string>

#include "costmodel/cost_model.h"
#include "tests/unit/search/tiny_fixture.h"
#include "topologies/builder.h"
#include "topologies/topology.h"

namespace orrery::search {

/// One switch over all hosts.
inline topologies::FabricSpec core() {
  return {.name = "core",
          .kind = "ib",
          .bytes_per_second = 10'000'000'000,
          .latency = base::Seconds(1e-6)};
}

/// `slow` and `fast` as the device of tiny_cluster(), one of them with its rates divided by
/// `slowness` and with `memory_bytes`; links in hosts of the fast ones carry `fast_links` bytes/s.
inline topologies::Topology mixed_cluster(int fast_hosts, int slow_hosts, int devices,
                                          double slowness, std::int64_t memory_bytes,
                                          std::int64_t fast_links = 20'000'000'000,
                                          const topologies::FabricSpec& fabric = core()) {
  topologies::DeviceModel fast = tiny_cluster(1).device_models().front();
  fast.name = "fast";
  topologies::DeviceModel slow = fast;
  slow.name = "slow";
  slow.peak_fp32 = slow.peak_fp32 * (1 / slowness);
  slow.peak_bf16 = slow.peak_bf16 * (1 / slowness);
  slow.memory_bandwidth = slow.memory_bandwidth * (1 / slowness);
  slow.memory_bytes = memory_bytes;
  topologies::TopologyBuilder b("mixed");
  const std::uint32_t models[] = {b.add_model(fast), b.add_model(slow)};
  for (std::uint32_t kind = 0; kind < 2; ++kind) {
    const auto hub = b.add_vertex(topologies::VertexKind::kSwitch, "switch", kind);
    for (int i = 0; i < devices; ++i)
      b.add_duplex(b.add_device("gpu" + std::to_string(i), kind, models[kind]), hub,
                   kind == 0 ? fast_links : 20'000'000'000, base::Seconds(1e-6), "nvlink");
    b.add_duplex(b.add_vertex(topologies::VertexKind::kNic, "nic", kind), hub, 10'000'000'000,
                 base::Seconds(1e-6), "pcie");
  }
  const std::uint32_t counts[] = {static_cast<std::uint32_t>(fast_hosts),
                                  static_cast<std::uint32_t>(slow_hosts)};
  auto built = std::move(b).build_cluster(counts, fabric);
  if (!built) ADD_FAILURE() << base::to_string(built.error());
  return *std::move(built);
}

inline costmodel::CostModel mixed_cost(const topologies::Topology& topology, int layers,
                                       std::optional<model::Profile> profile = std::nullopt) {
  auto cost = costmodel::CostModel::make(tiny_model(layers), topology, std::move(profile),
                                         {model::Precision::kBFloat16, 128});
  if (!cost) ADD_FAILURE() << base::to_string(cost.error());
  return *std::move(cost);
}

}  // namespace orrery::search
