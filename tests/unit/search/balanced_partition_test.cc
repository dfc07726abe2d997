#include "search/programs/balanced_partition.h"

#include <gtest/gtest.h>

#include "tests/unit/search/plain_layers.h"

namespace orrery::search {
namespace {

TEST(BalancedPartition, WorkedExample) {
  PlainLayers layers({4, 1, 1, 1, 1}, {1, 1, 1, 1, 1}, {1, 1});
  const Partition by_memory = balanced_division({1, 1, 1, 1, 1}, {0, 0}),
                  by_time = balanced_division({4, 1, 1, 1, 1}, {0, 0});
  EXPECT_EQ(by_memory, (Partition{3, 2}));
  EXPECT_EQ(by_time, (Partition{1, 4}));
  const auto found = balance(by_memory, by_time, 3, layers);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->partition, (Partition{1, 4}));
  EXPECT_EQ(found->cost_ps, 16);
  EXPECT_EQ(found->visited, 3);
  EXPECT_EQ(found->time_balance, 0.5);
  EXPECT_DOUBLE_EQ(found->memory_balance, 0.2);
}

TEST(BalancedPartition, EqualStagesAreBalancedAndOneStageIsNot) {
  EXPECT_DOUBLE_EQ(balance_degree({5, 5, 5, 5}), 0.75);
  EXPECT_DOUBLE_EQ(balance_degree({10, 5, 5}), 0.5);
  EXPECT_DOUBLE_EQ(balance_degree({7}), 0.0);
  EXPECT_DOUBLE_EQ(balance_degree({0, 0}), 0.5);
}

TEST(BalancedPartition, EveryStageGetsALayerEvenBesideHeavyEnds) {
  // The first stage holds more than its share before it has any layer.
  EXPECT_EQ(balanced_division({1, 1, 1, 1}, {100, 0, 0, 0}), (Partition{1, 1, 1, 1}));
  EXPECT_EQ(balanced_division({1, 1, 1, 1, 1, 1}, {0, 0, 100}), (Partition{4, 1, 1}));
  EXPECT_EQ(balanced_division({1, 1, 1}, {50, 50, 50}), (Partition{1, 1, 1}));
}

// Early stages keep more micro-batches: 1F1B on two stages holds two stashes in front, one behind.
TEST(BalancedPartition, AMoveThatFillsAStageBeyondTheTimeBalancedOneIsRefused) {
  PlainLayers layers({4, 1, 1, 1, 1}, {1, 1, 1, 1, 9}, {1, 2});
  const auto found = balance({3, 2}, {4, 1}, 3, layers);
  ASSERT_TRUE(found.has_value());
  // (4, 1): 18 bytes behind at most; (2, 3) would hold 22
  EXPECT_EQ(found->partition, (Partition{3, 2}));
}

TEST(BalancedPartition, AStartThatDoesNotFitIsNoAnswer) {
  PlainLayers layers({1, 1}, {5, 5}, {1, 1}, 4);
  EXPECT_FALSE(balance({1, 1}, {1, 1}, 1, layers).has_value());
}

}  // namespace
}  // namespace orrery::search
