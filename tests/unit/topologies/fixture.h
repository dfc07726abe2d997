#pragma once
// Shared by the tests of topologies: short ways to build and to describe.

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "base/result.h"
#include "topologies/builder.h"
#include "topologies/topology.h"

namespace orrery::topologies {

inline DeviceModel plain_model() {
  using namespace base::literals;
  return {.name = "device",
          .peak_fp32 = 10_TFLOPS,
          .peak_bf16 = 100_TFLOPS,
          .memory_bandwidth = 1000_GBps,
          .memory_bytes = int64_t{16} << 30,
          .launch_overhead = 5_us,
          .source = "invented"};
}

/// The topology, or a failed test that prints the diagnostics.
template <class T>
T expect_ok(base::Result<T> result) {
  if (!result) {
    ADD_FAILURE() << to_string(result.error());
    std::abort();
  }
  return *std::move(result);
}

/// Links that leave a vertex, ascending.
inline std::vector<LinkId> links_from(const Topology& t, VertexId from) {
  std::vector<LinkId> links;
  for (uint32_t l = 0; l < t.links().size(); ++l) {
    if (t.link(LinkId(l)).from == from) links.emplace_back(l);
  }
  return links;
}

/// "0/gpu[1] > 0/nvswitch > 0/gpu[2]": host/name, fabric vertices without a host.
inline std::string describe(const Topology& t, std::span<const LinkId> route) {
  const auto label = [&](VertexId id) {
    const Vertex& v = t.vertex(id);
    return (v.host == kNoHost ? "" : std::to_string(v.host) + "/") + v.name;
  };
  std::string text;
  for (const LinkId id : route) {
    if (text.empty()) text = label(t.link(id).from);
    text += " > " + label(t.link(id).to);
  }
  return text;
}

inline std::string describe(const Topology& t, uint32_t from, uint32_t to) {
  return describe(t, t.route(from, to));
}

inline base::Seconds latency_of(const Topology& t, std::span<const LinkId> route) {
  base::Seconds sum;
  for (const LinkId id : route) sum += t.link(id).latency;
  return sum;
}

inline int64_t bottleneck_of(const Topology& t, std::span<const LinkId> route) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const LinkId id : route) least = std::min(least, t.link(id).bytes_per_second);
  return least;
}

}  // namespace orrery::topologies
