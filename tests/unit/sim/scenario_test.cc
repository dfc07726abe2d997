// Scenarios as they are read: what each section selects, and what is refused where.
#include "sim/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/sim/scenario_scene.h"

namespace orrery::sim {
namespace {

using ::testing::HasSubstr;

std::string faults_of(const std::string& body) {
  const auto read = scenario(body, ways_around(2));
  EXPECT_FALSE(read.has_value());
  return read ? "" : base::to_string(read.error());
}

TEST(Scenario, LinksAreSelectedByAllTheirKeysTogether) {
  const topologies::Topology t = ways_around(2);
  const auto count = [&](const std::string& entry) { return good_scenario("links: [" + entry + "]", t).links.size(); };
  EXPECT_EQ(count("{kind: nvlink, rate: 0.5}"), 8U);                            // 4 devices, both directions
  EXPECT_EQ(count("{host: 1, kind: nvlink, rate: 0.5}"), 4U);
  EXPECT_EQ(count("{host: 1, at: 'gpu[0]', kind: nvlink, rate: 0.5}"), 2U);
  EXPECT_EQ(count("{host: 1, from: 'gpu[0]', kind: nvlink, rate: 0.5}"), 1U);
  EXPECT_EQ(count("{from: 'gpu[0-1]', to: bridge, rate: 0.5}"), 4U);
  EXPECT_EQ(count("{host: 0, at: nic, kind: ib, rate: 0.5}"), 4U);              // cables of two cards
  EXPECT_EQ(count("{at: 'spine[1]', rate: 0.5}"), 2U);                          // one leaf for two hosts
  EXPECT_EQ(count("{kind: nvlink, rate: 1}"), 0U);
}

TEST(Scenario, EffectsOnOneLinkMultiplyAndAFailureBeatsAll) {
  const topologies::Topology t = ways_around(2);
  const Scenario s = good_scenario(R"(
links:
  - {host: 0, at: 'gpu[1]', kind: nvlink, failed: true}
  - {kind: nvlink, rate: 0.5}
  - {host: 0, kind: nvlink, rate: 0.5}
)", t);
  std::vector<std::int64_t> rates;
  for (const topologies::LinkRate& l : s.links) rates.push_back(l.bytes_per_second);
  EXPECT_THAT(rates, ::testing::UnorderedElementsAre(25'000'000'000, 25'000'000'000, 0, 0, 50'000'000'000, 50'000'000'000, 50'000'000'000, 50'000'000'000));
}

TEST(Scenario, DevicesAreNamedByRankOrByHost) {
  const Scenario s = good_scenario("slow:\n  - {host: 1, slowdown: 1.5}\n  - {host: 1, device: 1, slowdown: 2}\n  - {device: 0, slowdown: 1.25}", ways_around(2));
  EXPECT_THAT(s.compute_ppm, ::testing::ElementsAre(1'250'000, 1'000'000, 1'500'000, 3'000'000));
}

TEST(Scenario, BackgroundIsARateOrAShareOfTheNarrowestLink) {
  const topologies::Topology t = ways_around(2);
  const Scenario s = good_scenario("background: [{from: 0, to: 2, rate: 1 GB/s}, {from: 0, to: 1, share: 0.25}]", t);
  ASSERT_EQ(s.background.size(), 2U);
  EXPECT_EQ(s.background[0].bytes_per_second, 1'000'000'000);
  EXPECT_EQ(s.background[1].bytes_per_second, 25'000'000'000);
  const auto flows = background_flows(s, t);
  ASSERT_TRUE(flows.has_value());
  EXPECT_EQ((*flows)[1].loads.size(), 2U);
}

TEST(Scenario, JitterSeedAndFailuresHaveDefaults) {
  const Scenario s = good_scenario("jitter: {sigma: 0.02}\nfailures: {mtbf: 50000 h}", ways_around(1));
  EXPECT_EQ(s.jitter.sigma_ppm, 20'000);
  EXPECT_EQ(s.jitter.of, Jitter::Of::kOperation);
  EXPECT_EQ(s.jitter.seed, 1U);
  EXPECT_EQ(s.failures->mtbf.raw(), 1.8e8);
  EXPECT_EQ(s.failures->checkpoint.raw(), 60);
  EXPECT_FALSE(s.failures->interval.has_value());
}

TEST(Scenario, WhatTheClusterLacksIsRefusedAtItsPlace) {
  EXPECT_THAT(faults_of("links: [{host: 9, rate: 0.5}]"), HasSubstr("s.yaml:2:16: error[E0007]: no host 9: cluster 'pairs' has 2, numbered from 0"));
  EXPECT_THAT(faults_of("links: [{at: 'nik[1]', rate: 0.5}]"), HasSubstr("did you mean 'nic'?"));
  EXPECT_THAT(faults_of("links: [{at: 'nic[2]', rate: 0.5}]"), HasSubstr("has no part 'nic[2]'"));
  EXPECT_THAT(faults_of("links: [{kind: nvlnk, rate: 0.5}]"), HasSubstr("did you mean 'nvlink'?"));
  EXPECT_THAT(faults_of("links: [{at: spine, kind: nvlink, rate: 0.5}]"), HasSubstr("no link of cluster 'pairs' is all of this at once"));
  EXPECT_THAT(faults_of("slow: [{device: 4, slowdown: 2}]"), HasSubstr("no device 4"));
  EXPECT_THAT(faults_of("slow: [{host: 1, device: 2, slowdown: 2}]"), HasSubstr("no device 2: a host of cluster 'pairs' has 2"));
  EXPECT_THAT(faults_of("background: [{from: 0, to: 7, rate: 1 GB/s}]"), HasSubstr("no device 7"));
}

TEST(Scenario, WhatMeansNothingIsRefused) {
  EXPECT_THAT(faults_of("name: nothing"), HasSubstr("changes nothing"));
  EXPECT_THAT(faults_of("links: [{rate: 0.5}]"), HasSubstr("which links"));
  EXPECT_THAT(faults_of("links: [{host: 0}]"), HasSubstr("either a rate"));
  EXPECT_THAT(faults_of("links: [{host: 0, rate: 0.5, failed: true}]"), HasSubstr("either a rate"));
  EXPECT_THAT(faults_of("links: [{host: 0, rate: 1.5}]"), HasSubstr("E0005"));
  EXPECT_THAT(faults_of("slow: [{slowdown: 2}]"), HasSubstr("which devices"));
  EXPECT_THAT(faults_of("slow: [{device: 0, slowdown: 0.5}]"), HasSubstr("E0005"));
  EXPECT_THAT(faults_of("jitter: {sigma: 0.5}"), HasSubstr("E0005"));
  EXPECT_THAT(faults_of("jitter: {sgma: 0.1}"), HasSubstr("did you mean 'sigma'?"));
  EXPECT_THAT(faults_of("background: [{from: 0, to: 0, rate: 1 GB/s}]"), HasSubstr("sends to itself"));
  EXPECT_THAT(faults_of("background: [{from: 0, rate: 1 GB/s}]"), HasSubstr("E0003"));
  EXPECT_THAT(faults_of("background: [{from: 0, to: 1}]"), HasSubstr("either a rate"));
  EXPECT_THAT(faults_of("failures: {mtbf: 0 s}"), HasSubstr("'mtbf' lies between"));
  EXPECT_THAT(faults_of("failures: {mtbf: 5}"), HasSubstr("E0004"));
}

TEST(Scenario, ACutOffDeviceIsADiagnostic) {
  const topologies::Topology t = ways_around(2);
  const Scenario s = good_scenario("links: [{host: 1, kind: ib, failed: true}]", t);
  const auto changed = apply_links(s, t, {0, 1, 2, 3});
  ASSERT_FALSE(changed.has_value());
  EXPECT_THAT(base::to_string(changed.error()), HasSubstr("without a route to device"));
  EXPECT_TRUE(apply_links(s, t, {0, 1}).has_value());
  EXPECT_TRUE(apply_links(s, t, {2, 3}).has_value());
}

}  // namespace
}  // namespace orrery::sim
