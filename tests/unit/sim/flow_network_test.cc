// Transfers that share links, solved by hand. At 1 GB/s a byte takes a nanosecond.
#include "sim/network/flow_network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "sim/network/collective_run.h"
#include "tests/unit/sim/traffic.h"
#include "tests/unit/sim/tree_ring.h"

namespace orrery::sim {
namespace {

using ::testing::ElementsAre;
using testing::over;
using testing::run_traffic;
using testing::Traffic;

constexpr std::int64_t kGB = 1'000'000'000;
constexpr std::int64_t kNs = 1'000;  // ps

TEST(FlowNetwork, AloneATransferTakesLatencyAndBytesOverRate) {
  Traffic t{.eras = {{.capacities = {kGB}}}};
  t.add({.latency_ps = 77, .wire_bytes = 1000, .links = over({0})});
  t.add({.latency_ps = 5});
  t.add({.wire_bytes = 100, .rate_cap = kGB / 3});  // at 333,333,333 B/s: 300.0000003 ns
  EXPECT_THAT(run_traffic(t).ends_ps, ElementsAre(77 + 1000 * kNs, 5, 300'001));
}

// Two share 1 GB/s until the short one ends at 200 ns; the long one has 300 B left of 400.
TEST(FlowNetwork, SharesChangeWhenATransferEnds) {
  Traffic t{.eras = {{.capacities = {kGB}}}};
  t.add({.wire_bytes = 100, .links = over({0})});
  t.add({.wire_bytes = 400, .links = over({0})});
  const auto outcome = run_traffic(t);
  EXPECT_THAT(outcome.ends_ps, ElementsAre(200 * kNs, 500 * kNs));
  EXPECT_THAT(outcome.sent, ElementsAre(100, 400));
  EXPECT_THAT(outcome.room, ElementsAre(500.0));
}

// 300 B alone; at 100 ns another starts: both have 200 B left at half the rate, until 500 ns.
TEST(FlowNetwork, SharesChangeWhenATransferStarts) {
  Traffic t{.eras = {{.capacities = {kGB}}}};
  t.add({.wire_bytes = 300, .links = over({0})});
  t.add({.wire_bytes = 200, .links = over({0})}, 100 * kNs);
  EXPECT_THAT(run_traffic(t).ends_ps, ElementsAre(500 * kNs, 500 * kNs));
}

// The long way shares link 0 with one and link 1 with two: a third of link 1 is its rate, and link
// 0 has two thirds for the other.
TEST(FlowNetwork, WhatOneLinkLeavesOverAnotherTransferGets) {
  Traffic t{.eras = {{.capacities = {kGB, kGB}}}};
  t.add({.wire_bytes = 300, .links = over({0, 1})});
  t.add({.wire_bytes = 600, .links = over({0})});
  t.add({.wire_bytes = 300, .links = over({1})});
  t.add({.wire_bytes = 300, .links = over({1})});
  // rounded down to whole bytes per second: a third is 333,333,333
  const std::int64_t end_ps = 900 * kNs + 1;
  EXPECT_THAT(run_traffic(t).ends_ps, ElementsAre(end_ps, 900 * kNs, end_ps, end_ps));
}

// A tree of 8 hosts without oversubscription: 2(n-1) steps of latency + (S/n)/r.
TEST(FlowNetwork, ARingReachesItsBound) {
  const testing::TwoLevelTree tree{.hosts = 8, .hosts_per_rack = 4, .host_bytes_per_second = kGB};
  const auto ring = testing::ring_all_reduce(tree, testing::in_order(8), 8000, 5);
  const auto outcome = run_schedule(testing::machine_of(tree.capacities()), ring);
  EXPECT_EQ(outcome.time_ps, 14 * (5 + 1000 * kNs));
  EXPECT_EQ(outcome.messages, 14U * 8);
}

// 100 B/µs until 1 µs, then 40: 900 B left take 22.5 µs. With a repair at 11 µs, 400 of them go
// before.
TEST(FlowNetwork, ADegradedLinkSlowsWhatCrossesItUntilItIsRepaired) {
  Traffic t{.eras = {{0, {kGB / 10}}, {1'000'000, {kGB / 25}}}};
  t.add({.wire_bytes = 1000, .links = over({0})});
  EXPECT_EQ(run_traffic(t).end_ps, 23'500'000);
  t.eras.push_back({11'000'000, {kGB / 10}});
  const auto outcome = run_traffic(t);
  EXPECT_EQ(outcome.end_ps, 16'000'000);
  EXPECT_DOUBLE_EQ(outcome.room[0], 1000);
}

TEST(FlowNetwork, ALinkThatGrowsLetsTransfersGrow) {
  Traffic t{.eras = {{0, {kGB}}, {500 * kNs, {2 * kGB}}}};
  t.add({.wire_bytes = 1000, .links = over({0})});
  EXPECT_EQ(run_traffic(t).end_ps, 750 * kNs);
}

// Background of at most 250 MB/s leaves 750; a greedy one takes half.
TEST(FlowNetwork, BackgroundTakesItsFairShare) {
  Traffic t{.eras = {{.capacities = {kGB}}}, .background = {{kGB / 4, over({0})}}};
  t.add({.wire_bytes = 750, .links = over({0})});
  const auto modest = run_traffic(t);
  EXPECT_EQ(modest.end_ps, 1000 * kNs);
  EXPECT_THAT(modest.sent, ElementsAre(750, 250));
  t.background = {{5 * kGB, over({0})}};
  EXPECT_EQ(run_traffic(t).end_ps, 1500 * kNs);
}

// One after another on a lane; the second is due while the first still runs.
TEST(FlowNetwork, TransfersOfOneLaneNeverShare) {
  Traffic t{.eras = {{.capacities = {kGB}}}};
  t.items = {{{.wire_bytes = 100, .links = over({0})}, 0, 0},
             {{.wire_bytes = 100, .links = over({0})}, 0, 50 * kNs}};
  EXPECT_THAT(run_traffic(t).ends_ps, ElementsAre(100 * kNs, 200 * kNs));
}

}  // namespace
}  // namespace orrery::sim
