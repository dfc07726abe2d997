#include "sim/network/transfer_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/sim/step_maker.h"
#include "tests/unit/sim/tree_ring.h"

namespace orrery::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kGB = 1'000'000'000;
constexpr std::int64_t kNs = 1'000;  // ps: at 1 GB/s a byte takes one

std::vector<costmodel::LinkLoad> over(std::vector<std::uint32_t> links) {
  std::vector<costmodel::LinkLoad> loads;
  for (const auto l : links) loads.push_back({topologies::LinkId(l), 1});
  return loads;
}

TransferOutcome run(const TransferGraph& graph, TransferRunOptions options = {}) {
  options.fold = false;
  auto unfolded = run_transfers(graph, options);
  options.fold = true;
  auto folded = run_transfers(graph, options);
  ORRERY_CHECK(unfolded.has_value() && folded.has_value());
  EXPECT_EQ(folded->ends_ps, unfolded->ends_ps);
  EXPECT_EQ(folded->fingerprint, unfolded->fingerprint);
  return *std::move(unfolded);
}

TEST(TransferRun, AloneATransferTakesLatencyAndBytesOverRate) {
  TransferGraph g({kGB});
  g.add({.bytes = 1000, .latency_ps = 77}, over({0}));
  g.add({.bytes = 0, .latency_ps = 5});
  g.add({.bytes = 100, .rate_cap = kGB / 3});  // 100 B at 333,333,333 B/s: 300.0000003 ns
  EXPECT_THAT(run(g).ends_ps, ElementsAre(77 + 1000 * kNs, 5, 300'001));
}

// Two share 1 GB/s until the short one ends at 200 ns; the long one has 300 B left of 400.
TEST(TransferRun, SharesChangeWhenATransferEnds) {
  TransferGraph g({kGB});
  g.add({.bytes = 100}, over({0}));
  g.add({.bytes = 400}, over({0}));
  const auto outcome = run(g);
  EXPECT_THAT(outcome.ends_ps, ElementsAre(200 * kNs, 500 * kNs));
  EXPECT_EQ(outcome.end_ps, 500 * kNs);
  EXPECT_EQ(outcome.links[0].bytes, 500);
  EXPECT_DOUBLE_EQ(outcome.links[0].utilisation, 1.0);
}

// An instance waits for its own last one and, at distance 1, for the other's: b0 ends at 30, a1
// starts then.
TEST(TransferRun, DependenciesAtADistanceJoinInstances) {
  TransferGraph g(std::vector<std::int64_t>{});
  const auto a = g.add({.latency_ps = 10, .repeats = 3}),
             b = g.add({.latency_ps = 30, .repeats = 3});
  g.depend(a, b, 1);
  EXPECT_THAT(run(g).ends_ps, ElementsAre(70, 90));
  g.depend(b, a, 0);  // b0 from 10 to 40, a1 to 50, b1 to 80, a2 to 90, b2 to 120
  EXPECT_THAT(run(g).ends_ps, ElementsAre(90, 120));
}

TEST(TransferRun, ANegativeDistanceWaitsForLaterInstancesAndTheLastStandsForAllAfterIt) {
  TransferGraph g(std::vector<std::int64_t>{});
  const auto a = g.add({.latency_ps = 10, .repeats = 3}),
             b = g.add({.latency_ps = 1, .repeats = 5});
  g.depend(b, a, -2);  // all of a before any of b
  EXPECT_THAT(run(g).ends_ps, ElementsAre(30, 35));
}

// The header's formula: 2(n-1) steps of latency + (S/n)/r.
TEST(TransferRun, ARingReachesItsBound) {
  const testing::TwoLevelTree tree{.hosts = 8, .hosts_per_rack = 4, .host_bytes_per_second = kGB};
  const auto outcome = run(testing::ring_all_reduce(tree, testing::in_order(8), 8000, 5));
  EXPECT_EQ(outcome.end_ps, 14 * (5 + 1000 * kNs));
}

// 100 B/µs until 1 µs, then 40: 900 B left take 22.5 µs. With a repair at 11 µs, 400 of them go
// before.
TEST(TransferRun, ADegradedLinkSlowsWhatCrossesItUntilItIsRepaired) {
  TransferGraph g({kGB / 10});
  g.add({.bytes = 1000}, over({0}));
  const topologies::LinkId link(0);
  const LinkChange degraded{link, 1'000'000, kGB / 25}, repaired{link, 11'000'000, kGB / 10};
  EXPECT_EQ(run(g, {.changes = {degraded}}).end_ps, 23'500'000);
  const auto outcome = run(g, {.changes = {repaired, degraded}});
  EXPECT_EQ(outcome.end_ps, 16'000'000);
  EXPECT_DOUBLE_EQ(outcome.links[0].utilisation, 1.0);
}

TEST(TransferRun, AFailedLinkStopsWhatCrossesItAndNothingElse) {
  TransferGraph g({kGB, kGB});
  g.add({.bytes = 1000}, over({0}));
  g.add({.bytes = 1000}, over({1}));
  const LinkChange failed{topologies::LinkId(0), 400 * kNs, 0},
      repaired{topologies::LinkId(0), 5000 * kNs, kGB};
  EXPECT_THAT(run(g, {.changes = {failed, repaired}}).ends_ps, ElementsAre(5600 * kNs, 1000 * kNs));
  const auto stuck = run_transfers(g, {.changes = {failed}});
  ASSERT_FALSE(stuck.has_value());
  EXPECT_EQ(stuck.error()[0].code, base::ErrorCode::kInconsistent);
  EXPECT_THAT(base::to_string(stuck.error()), HasSubstr("cross a link without capacity"));
}

TEST(TransferRun, ALinkThatGrowsLetsTransfersGrow) {
  TransferGraph g({kGB});
  g.add({.bytes = 1000}, over({0}));
  EXPECT_EQ(run(g, {.changes = {{topologies::LinkId(0), 500 * kNs, 2 * kGB}}}).end_ps, 750 * kNs);
}

// Background of at most 250 MB/s leaves 750; a greedy one takes half.
TEST(TransferRun, BackgroundTakesItsFairShare) {
  TransferGraph g({kGB});
  g.add({.bytes = 750}, over({0}));
  const auto modest = run(g, {.background = {{kGB / 4, over({0})}}});
  EXPECT_EQ(modest.end_ps, 1000 * kNs);
  EXPECT_EQ(modest.links[0].bytes, 1000);
  EXPECT_EQ(run(g, {.background = {{5 * kGB, over({0})}}}).end_ps, 1500 * kNs);
}

TEST(TransferRun, JobsShareTheFabricAndEndEachOnItsOwn) {
  TransferGraph small({kGB}), large({kGB}), both({kGB});
  small.add({.bytes = 100}, over({0}));
  large.add({.bytes = 400}, over({0}));
  both.append(small, 0);
  EXPECT_EQ(both.append(large, 1), TransferId(1));
  EXPECT_THAT(run(both).job_ends_ps, ElementsAre(200 * kNs, 500 * kNs));
}

TEST(TransferRun, NothingTakesNoTime) {
  EXPECT_EQ(run(TransferGraph({kGB})).end_ps, 0);
  TransferGraph g({kGB});
  g.depend(g.add({.repeats = 1000}), g.add({.repeats = 3}));
  EXPECT_EQ(run(g).end_ps, 0);
}

TEST(TransferRun, MessagesFollowTheTopologysRoutes) {
  const auto star = testing::star(3, kGB, 2);
  TransferGraph g(star);
  g.add_message(star, 0, 1, {.bytes = 1000});
  g.add_message(star, 2, 1, {.bytes = 1000});
  g.add_message(star, 2, 2, {.bytes = 1000});
  EXPECT_THAT(run(g).ends_ps, ElementsAre(2004 * kNs, 2004 * kNs, 0));  // both enter gpu[1]
}

TEST(TransferRun, ACycleOfWaitsIsAnError) {
  TransferGraph g(std::vector<std::int64_t>{});
  const auto a = g.add({.latency_ps = 1}), b = g.add({.latency_ps = 1});
  g.depend(a, b);
  g.depend(b, a);
  const auto stuck = run_transfers(g);
  ASSERT_FALSE(stuck.has_value());
  EXPECT_THAT(base::to_string(stuck.error()), HasSubstr("wait for others"));
}

TEST(TransferRun, OptionsAboutLinksThatAreNotThereAreErrors) {
  TransferGraph g({kGB});
  g.add({.bytes = 1}, over({0}));
  const auto failed = run_transfers(
      g, {.changes = {{topologies::LinkId(3), -1, 0}}, .background = {{0, over({9})}}});
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().size(), 4U);
}

TEST(TransferRun, FoldingSimulatesOneTransferForEachClass) {
  const testing::TwoLevelTree tree{.hosts = 64, .hosts_per_rack = 8, .oversubscription = 16};
  auto graph = testing::ring_all_reduce(tree, testing::in_order(64), 64'000);
  const auto folded = run_transfers(graph);
  ASSERT_TRUE(folded.has_value());
  EXPECT_EQ(folded->simulated_transfers, 8U);  // by place in the rack
  EXPECT_EQ(folded->constraints, 0U);          // one transfer alone on each link
}

}  // namespace
}  // namespace orrery::sim
