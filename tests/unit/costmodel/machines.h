#pragma once
/// Small machines with round numbers, for tests of prices.
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "base/check.h"
#include "topologies/builder.h"
#include "topologies/topology.h"

namespace orrery::costmodel::machines {

/// 100 TFLOP/s bf16, 10 TFLOP/s fp32, 1 TB/s, 1 us per launch.
inline topologies::DeviceModel device() {
  return {.name = "T100-80GB",
          .peak_fp32 = base::FlopsPerSecond(10e12),
          .peak_bf16 = base::FlopsPerSecond(100e12),
          .memory_bandwidth = base::BytesPerSecond(1e12),
          .memory_bytes = 80'000'000'000,
          .launch_overhead = base::Seconds(1e-6),
          .source = "test",
          .peak_fp8 = base::FlopsPerSecond(200e12),
          .peak_fp4 = base::FlopsPerSecond(400e12)};
}

/// One core switch, 1 us and 10 GB/s a cable.
inline topologies::FabricSpec core() {
  return {.name = "core",
          .kind = "ib",
          .bytes_per_second = 10'000'000'000,
          .latency = base::Seconds(1e-6)};
}

/// Fabrics of several levels for hosts of two network cards: kinds 0 .. 3, oversubscribed 2:1.
inline topologies::FabricSpec fabric(int kind) {
  using enum topologies::FabricShape;
  topologies::FabricSpec spec = core();
  spec.switch_latency = base::Seconds(1e-7);
  spec.oversubscription = 2;
  spec.shape = kind == 0 ? kLeafSpine : kind == 1 ? kRailOptimised : kFatTree;
  spec.ports_per_leaf = 4;
  spec.hosts_per_leaf = 2;
  spec.radix = kind == 2 ? 8 : 16;  // edge switches of 2 hosts, or 4; pods of 8, or 32
  return spec;
}

/// `hosts` hosts of `devices` devices around a switch, each by a cable of `bytes_per_second` and 1
/// us; network cards of 10 GB/s, 1 us to the switch, 1 us to the fabric. Device to device: 2 us in
/// a host, 6 us between hosts on a core switch.
inline topologies::Topology cluster(int devices, int hosts = 1,
                                    std::int64_t bytes_per_second = 100'000'000'000, int nics = 1,
                                    const topologies::FabricSpec& spec = core(),
                                    const topologies::DeviceModel& of = device()) {
  topologies::TopologyBuilder b("machine");
  const auto model = b.add_model(of);
  const auto hub = b.add_vertex(topologies::VertexKind::kSwitch, "switch", 0);
  for (int i = 0; i < devices; ++i) {
    b.add_duplex(b.add_device("gpu" + std::to_string(i), 0, model), hub, bytes_per_second,
                 base::Seconds(1e-6), "nvlink");
  }
  std::optional<topologies::FabricSpec> fabric;
  if (hosts > 1) {
    for (int i = 0; i < nics; ++i) {
      b.add_duplex(b.add_vertex(topologies::VertexKind::kNic, "nic" + std::to_string(i), 0), hub,
                   10'000'000'000, base::Seconds(1e-6), "pcie");
    }
    fabric = spec;
  }
  auto built = std::move(b).build_cluster(std::array{static_cast<std::uint32_t>(hosts)}, fabric);
  ORRERY_CHECK(built.has_value(), "{}", base::to_string(built.error()));
  return *std::move(built);
}

/// One host of cluster() with a processor whose memory is 2 us from the devices, over one link of
/// `bytes_per_second` that all share.
inline topologies::Topology with_processor(int devices,
                                           std::int64_t bytes_per_second = 50'000'000'000) {
  topologies::TopologyBuilder b("machine");
  const auto model = b.add_model(device());
  const auto hub = b.add_vertex(topologies::VertexKind::kSwitch, "switch", 0);
  const auto cpu = b.add_vertex(topologies::VertexKind::kHostBridge, "cpu", 0);
  for (int i = 0; i < devices; ++i) {
    b.add_duplex(b.add_device("gpu" + std::to_string(i), 0, model), hub, 100'000'000'000,
                 base::Seconds(1e-6), "nvlink");
  }
  b.add_duplex(hub, cpu, bytes_per_second, base::Seconds(1e-6), "pcie");
  auto built = std::move(b).build_cluster(std::array{std::uint32_t{1}}, std::nullopt);
  ORRERY_CHECK(built.has_value(), "{}", base::to_string(built.error()));
  return *std::move(built);
}

}  // namespace orrery::costmodel::machines
