#pragma once
/// Rings over a two-level tree of hosts, racks and one core: the workload on which speed is judged.

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "sim/network/collective_schedule.h"

namespace orrery::sim::testing {

/// Each host has a link up to its rack's switch and one down, each rack one up to the core and one
/// down.
struct TwoLevelTree {
  std::uint32_t hosts = 0, hosts_per_rack = 1;
  std::int64_t host_bytes_per_second = 50'000'000'000;
  std::int64_t oversubscription = 1;

  [[nodiscard]] std::uint32_t racks() const { return hosts / hosts_per_rack; }
  [[nodiscard]] std::int64_t rack_bytes_per_second() const {
    return host_bytes_per_second * hosts_per_rack / oversubscription;
  }
  [[nodiscard]] std::vector<std::int64_t> capacities() const {
    std::vector<std::int64_t> all(2 * static_cast<std::size_t>(hosts), host_bytes_per_second);
    all.insert(all.end(), 2 * static_cast<std::size_t>(racks()), rack_bytes_per_second());
    return all;
  }
  [[nodiscard]] std::vector<costmodel::LinkLoad> route(std::uint32_t from, std::uint32_t to) const {
    const std::uint32_t a = from / hosts_per_rack, b = to / hosts_per_rack;
    const auto load = [](std::uint32_t link) {
      return costmodel::LinkLoad{topologies::LinkId(link), 1};
    };
    if (a == b) return {load(from), load(hosts + to)};
    return {load(from), load(2 * hosts + a), load(2 * hosts + racks() + b), load(hosts + to)};
  }
};

inline std::vector<std::uint32_t> in_order(std::uint32_t n) {
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  return order;
}
/// Fisher and Yates.
inline std::vector<std::uint32_t> shuffled(std::uint32_t n, std::uint64_t seed) {
  std::vector<std::uint32_t> order = in_order(n);
  base::Rng rng(seed);
  for (std::uint32_t i = n; i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

/// Ring all-reduce, every step an explicit message: 2(n-1) steps, each host sends what it received
/// in the step before.
inline CollectiveSchedule ring_all_reduce(const TwoLevelTree& tree,
                                          const std::vector<std::uint32_t>& order,
                                          std::int64_t bytes, std::int64_t latency_ps = 0) {
  CollectiveSchedule ring;
  const auto n = static_cast<std::uint32_t>(order.size());
  ORRERY_CHECK(bytes % n == 0);
  for (std::uint32_t i = 0; i < n; ++i) {
    ring.add_path({.from = static_cast<int>(order[i]),
                   .to = static_cast<int>(order[(i + 1) % n]),
                   .data_bytes = bytes / n,
                   .wire_bytes = bytes / n,
                   .links = tree.route(order[i], order[(i + 1) % n])});
  }
  for (std::uint32_t step = 0; step < 2 * (n - 1); ++step) {
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t received = step == 0 ? kNoStep : (step - 1) * n + (i + n - 1) % n;
      ring.add_step({.path = i, .latency_ps = latency_ps}, {&received, 1});
    }
  }
  return ring;
}

}  // namespace orrery::sim::testing
