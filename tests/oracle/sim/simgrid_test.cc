// The flow network against SimGrid, whose network model CM02 computes the same max-min shares in
// floating point.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "sim/network/collective_run.h"
#include "tests/oracle/sim/simgrid_twin.h"
#include "tests/unit/sim/traffic.h"

namespace orrery::sim {
namespace {

#ifdef ORRERY_HAS_SIMGRID

/// A random connected graph of hosts, and transfers along shortest paths in it.
struct RandomFabric {
  // links 2 e and 2 e + 1 are the two directions of edge e
  std::vector<std::int64_t> capacities;
  std::vector<std::vector<std::uint32_t>> routes;  // [transfer]
  std::vector<std::int64_t> bytes;

  explicit RandomFabric(std::uint64_t seed) {
    base::Rng rng(seed);
    const auto hosts = static_cast<std::uint32_t>(2 + rng.below(199)),
               flows = static_cast<std::uint32_t>(1 + rng.below(500));
    // (neighbour, link)
    std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> out(hosts);
    const auto edge = [&](std::uint32_t a, std::uint32_t b) {
      out[a].emplace_back(b, static_cast<std::uint32_t>(capacities.size()));
      out[b].emplace_back(a, static_cast<std::uint32_t>(capacities.size() + 1));
      const auto capacity =
          static_cast<std::int64_t>(10'000'000'000'000 + rng.below(90'000'000'000'000));
      capacities.insert(capacities.end(), 2, capacity);
    };
    for (std::uint32_t h = 1; h < hosts; ++h) edge(h, static_cast<std::uint32_t>(rng.below(h)));
    for (std::uint64_t more = rng.below(hosts); more > 0; --more) {
      const auto a = static_cast<std::uint32_t>(rng.below(hosts)),
                 b = static_cast<std::uint32_t>(rng.below(hosts));
      if (a != b) edge(a, b);
    }
    for (std::uint32_t f = 0; f < flows; ++f) {
      const auto a = static_cast<std::uint32_t>(rng.below(hosts)),
                 b = static_cast<std::uint32_t>(rng.below(hosts - 1));
      routes.push_back(path(out, a, b < a ? b : b + 1));
      bytes.push_back(static_cast<std::int64_t>(1'000'000'000'000 + rng.below(9'000'000'000'000)));
    }
  }

  static std::vector<std::uint32_t> path(
      const std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>>& out,
      std::uint32_t from, std::uint32_t to) {
    // (host, link)
    std::vector<std::pair<std::uint32_t, std::uint32_t>> came(out.size(), {~0U, ~0U});
    std::vector<std::uint32_t> queue{from};
    for (std::size_t i = 0; came[to].first == ~0U; ++i) {
      for (const auto& [next, link] : out[queue[i]]) {
        if (next == from || came[next].first != ~0U) continue;
        came[next] = {queue[i], link};
        queue.push_back(next);
      }
    }
    std::vector<std::uint32_t> links;
    for (std::uint32_t at = to; at != from; at = came[at].first) links.push_back(came[at].second);
    std::reverse(links.begin(), links.end());
    return links;
  }
};

TEST(SimgridOracle, TransfersOnRandomFabricsEndAtTheSameTimes) {
  std::size_t transfers = 0;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    const RandomFabric fabric(seed);
    testing::Traffic traffic{.eras = {{.capacities = fabric.capacities}}};
    for (std::size_t i = 0; i < fabric.routes.size(); ++i)
      traffic.add({.wire_bytes = fabric.bytes[i], .links = testing::over(fabric.routes[i])});
    const auto ours = testing::run_traffic(traffic);
    const auto theirs = testing::simgrid_transfers(fabric.capacities, fabric.routes, fabric.bytes);
    ASSERT_EQ(theirs.values.size(), fabric.routes.size());
    for (std::size_t i = 0; i < fabric.routes.size(); ++i) {
      const double end_s = static_cast<double>(ours.ends_ps[i]) / 1e12;
      ASSERT_NEAR(end_s / theirs.values[i], 1, 1e-9) << "seed " << seed << ", transfer " << i;
    }
    transfers += fabric.routes.size();
  }
  EXPECT_GT(transfers, 4000U);
}

// 64 hosts and 16 are enough to keep it short; the bench holds 512 hosts against SimGrid.
TEST(SimgridOracle, RandomRingsOnOversubscribedTreesTakeTheSameTime) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const std::uint32_t hosts = seed % 2 == 0 ? 64 : 32;
    const testing::TwoLevelTree tree{.hosts = hosts, .hosts_per_rack = 8, .oversubscription = 4};
    const auto order = testing::shuffled(hosts, seed);
    const auto ours = run_schedule(testing::machine_of(tree.capacities()),
                                   testing::ring_all_reduce(tree, order, 1 << 30));
    const auto theirs = testing::simgrid_ring(tree, order, 1 << 30);
    EXPECT_NEAR(static_cast<double>(ours.time_ps) / 1e12 / theirs.values.at(0), 1, 1e-6);
  }
}

#else

TEST(SimgridOracle, NeedsLibsimgrid) {
  GTEST_SKIP() << "libsimgrid-dev was not found when this was built: scripts/setup.sh installs it";
}

#endif

}  // namespace
}  // namespace orrery::sim
