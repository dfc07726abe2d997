#include "costmodel/collectives/collective_patterns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

std::vector<int> first(int n) {
  std::vector<int> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

TEST(TreeParent, TwoTreesOfFourAreTheWorkedExample) {
  EXPECT_EQ((std::vector{tree_parent(0, 4, false), tree_parent(1, 4, false),
                         tree_parent(2, 4, false), tree_parent(3, 4, false)}),
            (std::vector{-1, 2, 0, 2}));
  EXPECT_EQ((std::vector{tree_parent(0, 4, true), tree_parent(1, 4, true), tree_parent(2, 4, true),
                         tree_parent(3, 4, true)}),
            (std::vector{1, 3, 1, -1}));
}

TEST(TreeParent, ANodeIsInnerInAtMostOneTreeBesidesTheRoots) {
  for (int n = 2; n <= 33; ++n) {
    std::vector<int> trees(static_cast<std::size_t>(n), 0);
    for (const bool second : {false, true}) {
      std::set<int> inner;
      int roots = 0;
      for (int i = 0; i < n; ++i) {
        const int up = tree_parent(i, n, second);
        roots += up < 0;
        if (up >= 0) inner.insert(up);
        int at = i, hops = 0;
        while (at >= 0 && hops <= n) {
          at = tree_parent(at, n, second);
          ++hops;
        }
        EXPECT_LE(hops, n) << "a cycle through " << i << " of " << n;
      }
      EXPECT_EQ(roots, 1) << n;
      for (const int i : inner) ++trees[static_cast<std::size_t>(i)];
    }
    EXPECT_LE(std::count(trees.begin(), trees.end(), 2), 2) << n;  // the two roots may be
  }
}

TEST(RingChannels, ARingLeavesAHostAtItsOwnPlaceAndEntersTheNextAtTheSame) {
  const auto machine = machines::cluster(4, 2);
  const auto channels = ring_channels(layout_of(machine, first(8)));
  ASSERT_EQ(channels.size(), 4U);
  EXPECT_EQ(channels[0], (std::vector{1, 2, 3, 0, 4, 7, 6, 5}));
  EXPECT_EQ(channels[2], (std::vector{3, 0, 1, 2, 6, 5, 4, 7}));
}

TEST(RingChannels, UnequalHostsShareOneRingByHost) {
  const auto machine = machines::cluster(4, 2);
  const std::vector<int> ranks{0, 5, 1, 6, 2};
  EXPECT_EQ(ring_channels(layout_of(machine, ranks)),
            (std::vector<std::vector<int>>{{0, 1, 2, 5, 6}}));
}

TEST(RingChannels, DisjointCyclesUseTheLinksOfAMesh) {
  topologies::TopologyBuilder b("mesh");
  const auto model = b.add_model(machines::device());
  std::vector<topologies::VertexId> devices;
  for (int i = 0; i < 8; ++i) devices.push_back(b.add_device("gpu" + std::to_string(i), 0, model));
  for (std::size_t i = 0; i < 8; ++i)
    for (std::size_t j = 0; j < i; ++j)
      b.add_duplex(devices[i], devices[j], 64'000'000'000, base::Seconds(1e-6), "xgmi");
  const auto mesh = std::move(b).build();
  ASSERT_TRUE(mesh.has_value());
  const auto channels = ring_channels(layout_of(*mesh, first(8)));
  EXPECT_EQ(channels.size(), 7U);
  std::set<std::pair<int, int>> links;
  for (const auto& ring : channels) {
    EXPECT_EQ(std::set<int>(ring.begin(), ring.end()).size(), 8U);
    for (std::size_t i = 0; i < 8; ++i)
      EXPECT_TRUE(links.emplace(ring[i], ring[(i + 1) % 8]).second);
  }
}

TEST(TreeChannels, AHostIsAChainBehindItsLead) {
  const auto machine = machines::cluster(4, 2);
  const auto trees = tree_channels(layout_of(machine, first(8)));
  ASSERT_EQ(trees.size(), 8U);  // both trees of hosts behind each of the four leads
  EXPECT_EQ(trees[5].device_depth, 3);
  EXPECT_EQ(trees[5].network_depth, 1);
  EXPECT_EQ(trees[1].ranks, (std::vector{1, 2, 3, 0, 5, 6, 7, 4}));
  // the second tree's root is host 1
  EXPECT_EQ(trees[5].ranks, (std::vector{5, 6, 7, 4, 1, 2, 3, 0}));
  EXPECT_EQ(trees[5].parent, (std::vector{-1, 0, 1, 2, 0, 4, 5, 6}));
  // one host: a chain behind each
  EXPECT_EQ(tree_channels(layout_of(machine, first(4))).size(), 4U);
}

TEST(HalvingDoubling, OfSixStartsAndEndsWithTheTwoThatAreLeftOver) {
  const auto machine = machines::cluster(6);
  const auto steps = halving_doubling(layout_of(machine, first(6)));
  ASSERT_EQ(steps.size(), 6U);  // 1 + 2 + 2 + 1
  EXPECT_EQ(steps.front().sends.size(), 2U);
  EXPECT_EQ(steps.front().sends[0].from, 1);
  EXPECT_EQ(steps.front().sends[0].to, 0);
  EXPECT_EQ(steps[1].sends.size(), 4U);
  EXPECT_EQ(steps[1].sends[0].pieces, 2);
  EXPECT_FALSE(steps.back().reduces);
}

TEST(AllToAllLinks, OfRanksTogetherAreThoseOfAllPairs) {
  const auto machine = machines::cluster(3, 4);
  const auto group = layout_of(machine, first(12));
  std::vector<std::int64_t> pairs(machine.links().size(), 0), ranks(machine.links().size(), 0);
  for (std::uint32_t a = 0; a < 12; ++a)
    for (std::uint32_t b = 0; b < 12; ++b)
      for (const auto link : machine.route(a, b)) ++pairs[link.raw()];
  for (std::size_t h = 0; h < 4; ++h)
    for (const int rank : group.hosts[h])
      for (const auto& load : all_to_all_links(machine, group, static_cast<int>(h), rank))
        ranks[load.link.raw()] += load.flows;
  EXPECT_EQ(pairs, ranks);
}

}  // namespace
}  // namespace orrery::costmodel
