#include "costmodel/collectives/collectives.h"

#include <gtest/gtest.h>

#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

using machines::cluster;
using plan::Collective;

constexpr std::int64_t kMicro = 1'000'000;   // ps
constexpr std::int64_t kTensor = 4'000'000;  // bytes

plan::Group group(int size, int stride = 1) {
  return {.name = "g", .size = size, .stride = stride};
}

model::CollectiveTimes bandwidth(Collective op, int size, double bytes_per_second,
                                 double latency = 0, int stride = 1, int hosts = 1) {
  return {.op = op,
          .size = size,
          .stride = stride,
          .hosts = hosts,
          .bus_bandwidth = bytes_per_second,
          .latency_seconds = latency,
          .points = {}};
}

TEST(RingAllReduce, SingleRankIsFree) {
  const auto topology = cluster(4);
  const CollectivePrices prices(topology, {});
  EXPECT_EQ(prices.collective(Collective::kAllReduce, group(1), kTensor, 0, 4).duration_ps(), 0);
}

// 6 steps of 2 us; 6 MB on 100 GB/s: 60 us.
TEST(RingAllReduce, TakesStepsTimesLatencyPlusWireBytesOverBandwidth) {
  const auto topology = cluster(4);
  const CollectivePrices prices(topology, {});
  const auto t = prices.collective(Collective::kAllReduce, group(4), kTensor, 0, 4);
  EXPECT_EQ(t.wire_bytes, 6'000'000);
  EXPECT_EQ(t.latency_ps, 12 * kMicro);
  EXPECT_EQ(t.bytes_per_second, 100'000'000'000);
  EXPECT_EQ(t.duration_ps(), 72 * kMicro);
  ASSERT_EQ(t.links.size(), 8U);
  for (const auto& l : t.links) EXPECT_EQ(l.flows, 1);
}

TEST(Collectives, GatherScatterExchangeAndBroadcastFollowTheirFormulas) {
  const auto topology = cluster(4);
  const CollectivePrices prices(topology, {});
  const auto ps = [&](Collective op) {
    return prices.collective(op, group(4), kTensor, 0, 4).duration_ps();
  };
  EXPECT_EQ(ps(Collective::kAllGather), (3 * 2 + 30) * kMicro);
  EXPECT_EQ(ps(Collective::kReduceScatter), (3 * 2 + 30) * kMicro);
  EXPECT_NEAR(static_cast<double>(ps(Collective::kAllToAll)), 32e6, 1);
  EXPECT_EQ(ps(Collective::kBroadcast), (3 * 2 + 40) * kMicro);
  EXPECT_EQ(ps(Collective::kPointToPoint), (2 + 40) * kMicro);
}

// Two groups {0, 2} and {1, 3} over two hosts: two flows leave each host through its 10 GB/s card.
TEST(Collectives, SiblingGroupsShareTheLinksBetweenHosts) {
  const auto topology = cluster(2, 2);
  const CollectivePrices prices(topology, {});
  const auto t = prices.collective(Collective::kAllReduce, group(2, 2), kTensor, 0, 4);
  EXPECT_EQ(t.wire_bytes, kTensor);
  EXPECT_EQ(t.bytes_per_second, 5'000'000'000);
  EXPECT_EQ(t.latency_ps, 2 * 6 * kMicro);
  EXPECT_EQ(t.duration_ps(), 12 * kMicro + 800 * kMicro);
}

TEST(Collectives, AStageOfThePipelineLoadsOnlyItsOwnLinks) {
  const auto topology = cluster(2, 2);
  const CollectivePrices prices(topology, {});
  const auto t = prices.collective(Collective::kAllReduce, group(2), kTensor, 2, 2);
  ASSERT_EQ(t.links.size(), 4U);
  for (const auto& l : t.links) EXPECT_EQ(topology.vertex(topology.link(l.link).from).host, 1U);
}

TEST(Collectives, AGroupAcrossTwoStagesIsTheSumOfItsClasses) {
  const auto topology = cluster(4);
  const CollectivePrices prices(topology, {});
  const auto part = [&](int first) {
    return prices.collective(Collective::kAllReduce, group(2, 2), kTensor, first, 2);
  };
  EXPECT_EQ(part(0).links.size(), 4U);
  EXPECT_EQ(part(2).links.size(), 4U);
  const auto whole =
      prices.collective(Collective::kAllReduce, group(2, 2), kTensor, 0, 2, Senders::kWholeGroups);
  EXPECT_EQ(whole.links.size(), 8U);
  EXPECT_EQ(whole.duration_ps(), part(2).duration_ps());
}

TEST(MeasuredCollectives, BusBandwidthIsReproducedExactly) {
  const auto topology = cluster(4);
  const CollectivePrices prices(topology, {bandwidth(Collective::kAllReduce, 4, 50e9)});
  const auto t = prices.collective(Collective::kAllReduce, group(4), kTensor, 0, 4);
  EXPECT_EQ(t.rate_cap, 50'000'000'000);
  EXPECT_EQ(t.duration_ps(), (12 + 120) * kMicro);  // the route's latency, 6 MB at 50 GB/s
  EXPECT_EQ(prices.collective(Collective::kAllGather, group(4), kTensor, 0, 4).duration_ps(),
            (6 + 60) * kMicro);
}

TEST(MeasuredCollectives, AnEntrysLatencyIsPerRingStep) {
  const auto topology = cluster(4);
  const CollectivePrices prices(topology, {bandwidth(Collective::kAllReduce, 4, 50e9, 5e-6)});
  EXPECT_EQ(prices.collective(Collective::kAllReduce, group(4), kTensor, 0, 4).duration_ps(),
            (30 + 120) * kMicro);
  EXPECT_EQ(prices.collective(Collective::kReduceScatter, group(4), kTensor, 0, 4).duration_ps(),
            (15 + 60) * kMicro);
}

TEST(MeasuredCollectives, InAStepTakeTheFactorAndWhatTheHostAdds) {
  const auto topology = cluster(4);
  const auto entry = bandwidth(Collective::kAllReduce, 4, 50e9, 1e-6);
  const CollectivePrices alone(topology, {entry}),
      step(topology, {entry}, {}, {.factor = 1.5, .issue_seconds = 10e-6, .fabric_share = 1});
  EXPECT_EQ(alone.collective(Collective::kAllReduce, group(4), kTensor, 0, 4).duration_ps(),
            (6 + 120) * kMicro);
  const auto t = step.collective(Collective::kAllReduce, group(4), kTensor, 0, 4);
  EXPECT_EQ(t.latency_ps, (9 + 10) * kMicro);
  EXPECT_NEAR(static_cast<double>(t.duration_ps()), (9 + 10 + 180) * 1e6, 10);
  // not measured: half as many bytes more over a host's links
  const auto links = step.exchange(0, 3, 1, kTensor);
  EXPECT_EQ(links.duration_ps(), (2 + 60 + 10) * kMicro);
}

TEST(MeasuredCollectives, LinksThatTheMeasurementOutrunsCarryNoLoad) {
  const auto topology = cluster(4);
  const CollectivePrices prices(topology, {bandwidth(Collective::kAllReduce, 4, 200e9)});
  const auto t = prices.collective(Collective::kAllReduce, group(4), kTensor, 0, 4);
  EXPECT_TRUE(t.links.empty());
  EXPECT_EQ(t.duration_ps(), (12 + 30) * kMicro);
}

TEST(MeasuredCollectives, StridedAndConsecutiveGroupsKeepApart) {
  const auto topology = cluster(8);
  const CollectivePrices prices(topology, {bandwidth(Collective::kAllReduce, 2, 50e9),
                                           bandwidth(Collective::kAllReduce, 2, 25e9, 0, 4)});
  EXPECT_EQ(prices.collective(Collective::kAllReduce, group(2, 1), kTensor, 0, 8).rate_cap,
            50'000'000'000);
  EXPECT_EQ(prices.collective(Collective::kAllReduce, group(2, 2), kTensor, 0, 8).rate_cap,
            25'000'000'000);
  EXPECT_EQ(prices.collective(Collective::kAllReduce, group(4, 1), kTensor, 0, 8).rate_cap, 0);
}

TEST(MeasuredCollectives, GroupsAcrossHostsDoNotTakeOneHostNumbers) {
  const auto topology = cluster(2, 2);
  const CollectivePrices prices(topology, {bandwidth(Collective::kAllReduce, 2, 50e9)});
  EXPECT_EQ(prices.collective(Collective::kAllReduce, group(2, 2), kTensor, 0, 4).rate_cap, 0);
}

// t = 5 us + 5 ns/B between the points; 3000 wire bytes in 10 us.
TEST(MeasuredCollectives, PointsAreJoinedByStraightLines) {
  const auto topology = cluster(4);
  model::CollectiveTimes entry = bandwidth(Collective::kAllReduce, 4, 0);
  entry.points = {{1000, 10e-6}, {3000, 20e-6}};
  const CollectivePrices prices(topology, {entry});
  const auto at = [&](std::int64_t bytes) {
    return prices.collective(Collective::kAllReduce, group(4), bytes, 0, 4);
  };
  EXPECT_EQ(at(2000).latency_ps, 5 * kMicro);
  EXPECT_NEAR(static_cast<double>(at(2000).duration_ps()), 15e6, 2);
  EXPECT_NEAR(static_cast<double>(at(1000).duration_ps()), 10e6, 2);
  EXPECT_NEAR(static_cast<double>(at(3000).duration_ps()), 20e6, 2);
  EXPECT_NEAR(static_cast<double>(at(5000).duration_ps()), 30e6, 2);
}

TEST(Exchange, StagesSendSideBySide) {
  const auto topology = cluster(2, 2);
  const CollectivePrices prices(topology, {});
  const auto t = prices.exchange(0, 2, 2, kTensor);
  EXPECT_EQ(t.bytes_per_second, 5'000'000'000);
  EXPECT_EQ(t.duration_ps(), 6 * kMicro + 800 * kMicro);
  EXPECT_EQ(prices.exchange(2, 2, -2, kTensor).duration_ps(), t.duration_ps());
}

TEST(Exchange, TakesTheMeasuredPipelineDegreeNearestToItsOwn) {
  const auto topology = cluster(8);
  const CollectivePrices prices(topology, {bandwidth(Collective::kPointToPoint, 2, 40e9),
                                           bandwidth(Collective::kPointToPoint, 8, 20e9)});
  EXPECT_EQ(prices.exchange(0, 4, 4, kTensor).duration_ps(), (2 + 100) * kMicro);
  EXPECT_EQ(prices.exchange(0, 1, 1, kTensor).duration_ps(), (2 + 200) * kMicro);
}

}  // namespace
}  // namespace orrery::costmodel
