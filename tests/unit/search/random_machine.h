#pragma once
/// Random clusters and models so small that whole plans can be enumerated. Everything is a function
/// of the generator's seed.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "costmodel/cost_model.h"
#include "search/loop/planner.h"
#include "search/space/space_text.h"
#include "tests/unit/search/tiny_fixture.h"
#include "topologies/builder.h"

namespace orrery::search {

/// Hosts of devices around a switch, one network card a host.
struct Machine {
  int hosts = 1, devices_per_host = 1;
  std::int64_t link_bytes_per_second = 0, card_bytes_per_second = 0;
  std::int64_t latency_ns = 0;  // of one cable
  std::int64_t gigaflops = 0, memory_bytes_per_second = 0, launch_ns = 0;

  [[nodiscard]] int devices() const { return hosts * devices_per_host; }
};

/// In [low, high].
inline std::int64_t between(base::Rng& rng, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(high - low + 1)));
}
/// One of 1, 2, 4, … up to `limit`, which is one itself.
inline std::int64_t power_of_two(base::Rng& rng, std::int64_t limit) {
  std::int64_t n = 1;
  while (n < limit && rng.below(3) > 0) n *= 2;
  return n;
}

/// Rates over one and a half orders of magnitude each, so that compute, links and latency all come
/// to matter.
inline Machine random_machine(base::Rng& rng, int max_devices) {
  Machine m;
  const auto devices = static_cast<int>(power_of_two(rng, max_devices));
  m.hosts = devices > 1 && rng.below(3) == 0 ? 2 : 1;
  m.devices_per_host = devices / m.hosts;
  m.link_bytes_per_second = between(rng, 5, 150) * 1'000'000'000;
  m.card_bytes_per_second = between(rng, 1, 30) * 1'000'000'000;
  m.latency_ns = between(rng, 100, 4000);
  m.gigaflops = between(rng, 5'000, 150'000);
  m.memory_bytes_per_second = between(rng, 100, 3000) * 1'000'000'000;
  m.launch_ns = between(rng, 0, 3000);
  return m;
}

inline topologies::Topology build(const Machine& m) {
  const auto seconds = [](std::int64_t ns) { return base::Seconds(static_cast<double>(ns) / 1e9); };
  topologies::TopologyBuilder b("random");
  const auto model = b.add_model(
      {.name = "device",
       .peak_fp32 = base::FlopsPerSecond(static_cast<double>(m.gigaflops) * 1e8),
       .peak_bf16 = base::FlopsPerSecond(static_cast<double>(m.gigaflops) * 1e9),
       .memory_bandwidth = base::BytesPerSecond(static_cast<double>(m.memory_bytes_per_second)),
       .memory_bytes = 1 << 30,
       .launch_overhead = seconds(m.launch_ns),
       .source = "made up"});
  const auto hub = b.add_vertex(topologies::VertexKind::kSwitch, "switch", 0);
  for (int i = 0; i < m.devices_per_host; ++i) {
    b.add_duplex(b.add_device(fmt::format("gpu{}", i), 0, model), hub, m.link_bytes_per_second,
                 seconds(m.latency_ns), "nvlink");
  }
  std::optional<topologies::FabricSpec> fabric;
  if (m.hosts > 1) {
    b.add_duplex(b.add_vertex(topologies::VertexKind::kNic, "nic", 0), hub, m.card_bytes_per_second,
                 seconds(m.latency_ns), "pcie");
    fabric = topologies::FabricSpec{.name = "core",
                                    .kind = "ib",
                                    .bytes_per_second = m.card_bytes_per_second,
                                    .latency = seconds(m.latency_ns)};
  }
  auto built = std::move(b).build_cluster(std::array{static_cast<std::uint32_t>(m.hosts)}, fabric);
  ORRERY_CHECK(built.has_value(), "{}", base::to_string(built.error()));
  return *std::move(built);
}

/// Blocks of one stream (hidden 256, 8 heads), so that layers of different kinds can stand behind
/// one another: 0 as many key as query heads, 1 a wide MLP, 2 two key heads, 3 a mixture of
/// experts.
inline constexpr int kBlockKinds = 4;
inline model::ModelSpec block_kind(int kind, int layers) {
  model::ModelSpec m = tiny_model(layers);
  m.heads = m.kv_heads = 8;
  m.head_dim = 32;
  if (kind == 1) m.ffn = 2048;
  if (kind == 2) m.kv_heads = 2;
  if (kind == 3) {
    m.family = model::Family::kMixtral;
    m.experts = 8;
    m.experts_per_token = 2;
    m.ffn = 256;
  }
  return m;
}

inline costmodel::CostModel cost_of(const Machine& machine, const model::ModelSpec& model) {
  auto cost = costmodel::CostModel::make(model, build(machine), std::nullopt,
                                         {model::Precision::kBFloat16, model.max_positions});
  ORRERY_CHECK(cost.has_value(), "{}", base::to_string(cost.error()));
  return *std::move(cost);
}

/// These dimensions alone (space_text.h), under 1F1B on all devices.
inline Space space_of(std::string_view dimensions) {
  auto space = restrict_to_dimensions(dimensions, {});
  ORRERY_CHECK(space.has_value(), "{}", base::to_string(space.error()));
  space->gpipe = false;
  return *space;
}

/// Any of the dimensions of every_plan.h, each on or off.
inline Space random_space(base::Rng& rng) {
  Space s = space_of("dp");
  for (bool* on : {&s.data, &s.zero1, &s.zero2, &s.zero3, &s.sequence_parallel, &s.recompute_full,
                   &s.recompute_selective, &s.hybrid, &s.ring, &s.ulysses, &s.strided, &s.expert,
                   &s.reduce_per_micro_batch, &s.reduce_at_end}) {
    *on = rng.below(2) == 0;
  }
  for (bool* on : {&s.tensor, &s.pipeline, &s.tensor_alone, &s.recompute_none, &s.reduce_per_step})
    *on = rng.below(6) > 0;
  s.recompute_none = s.recompute_none || !(s.recompute_full || s.recompute_selective);
  return s;
}

}  // namespace orrery::search
