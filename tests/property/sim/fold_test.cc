#include "sim/network/fold.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "tests/property/sim/random_traffic.h"
#include "tests/unit/sim/tree_ring.h"

namespace orrery::sim {
namespace {

class FoldProperty : public ::testing::TestWithParam<bool> {};

TEST_P(FoldProperty, FoldedTimesEqualUnfoldedOnesToThePicosecond) {
  std::uint64_t transfers = 0, classes = 0;
  for (std::uint64_t seed = 0; seed < 250; ++seed) {
    auto [graph, options] = testing::RandomTraffic(seed).draw(GetParam());
    const auto folded = run_transfers(graph, options);
    options.fold = false;
    const auto unfolded = run_transfers(graph, options);
    ASSERT_TRUE(unfolded.has_value())
        << "seed " << seed << ": " << base::to_string(unfolded.error());
    ASSERT_TRUE(folded.has_value()) << "seed " << seed;
    ASSERT_EQ(folded->ends_ps, unfolded->ends_ps) << "seed " << seed;
    ASSERT_EQ(folded->fingerprint, unfolded->fingerprint);
    for (std::size_t l = 0; l < folded->links.size(); ++l)
      ASSERT_EQ(folded->links[l].bytes, unfolded->links[l].bytes) << "seed " << seed;
    transfers += unfolded->simulated_transfers;
    classes += folded->simulated_transfers;
  }
  EXPECT_LT(classes, transfers * (GetParam() ? 9 : 4) / 10) << "of " << transfers;
}
INSTANTIATE_TEST_SUITE_P(WithAndWithoutAsymmetry, FoldProperty, ::testing::Bool());

// Cells of lanes and constraints that are not equitable would give one class different shares.
TEST(FoldProperty, CellsAreEquitable) {
  for (std::uint64_t seed = 1000; seed < 1100; ++seed) {
    const auto [graph, options] = testing::RandomTraffic(seed).draw(seed % 2 == 0);
    const FlowSystem system = make_system(graph, options);
    const Fold folded = fold(system);
    // [constraint]: by lane cell
    std::vector<std::map<std::uint32_t, std::int64_t>> flows(system.capacities.size());
    for (std::uint32_t lane = 0; lane < system.lanes.size(); ++lane) {
      ASSERT_TRUE(system.lanes[lane] == folded.system.lanes[folded.cell_of_lane[lane]]);
      for (const auto& load : system.loads[lane])
        flows[load.constraint][folded.cell_of_lane[lane]] += load.flows;
    }
    // Seen from every lane of a cell, its constraints carry the same flows of the same cells.
    using Seen = std::vector<std::pair<std::int64_t, std::map<std::uint32_t, std::int64_t>>>;
    std::map<std::uint32_t, Seen> of_cell;
    for (std::uint32_t lane = 0; lane < system.lanes.size(); ++lane) {
      Seen seen;
      for (const auto& load : system.loads[lane])
        seen.emplace_back(system.capacities[load.constraint], flows[load.constraint]);
      std::sort(seen.begin(), seen.end());
      const auto [at, fresh] = of_cell.try_emplace(folded.cell_of_lane[lane], seen);
      ASSERT_TRUE(fresh || at->second == seen) << "seed " << seed;
    }
  }
}

// Two jobs on racks of their own: a slow link under the first leaves the second's classes alone.
TEST(FoldProperty, AnAsymmetrySplitsOnlyTheClassesItReaches) {
  const testing::TwoLevelTree tree{.hosts = 32, .hosts_per_rack = 8, .oversubscription = 8};
  const auto classes = [&](bool slow) {
    auto capacities = tree.capacities();
    if (slow) capacities[3] /= 2;
    TransferGraph graph(capacities);
    for (const std::uint32_t first : {0U, 16U}) {
      TransferGraph job(capacities);
      for (std::uint32_t i = 0; i < 16; ++i)
        job.add({.bytes = 1000, .repeats = 30}, tree.route(first + i, first + (i + 1) % 16));
      for (std::uint32_t i = 0; i < 16; ++i) job.depend(TransferId((i + 1) % 16), TransferId(i), 1);
      graph.append(job, first / 16);
    }
    const Fold folded = fold(make_system(graph, {}));
    std::vector<std::uint32_t> second(folded.cell_of_lane.begin() + 16, folded.cell_of_lane.end());
    std::sort(second.begin(), second.end());
    const auto of_second = std::unique(second.begin(), second.end()) - second.begin();
    return std::pair(folded.system.lanes.size(), static_cast<std::size_t>(of_second));
  };
  // both jobs alike, no link full
  EXPECT_EQ(classes(false), std::pair(std::size_t{1}, std::size_t{1}));
  // all 16 of the ring that waits for the slow link
  EXPECT_EQ(classes(true), std::pair(std::size_t{17}, std::size_t{1}));
}

}  // namespace
}  // namespace orrery::sim
