// Scenarios as they are read: what each section selects, and what is refused where.
#include "sim/scenario/scenario.h"

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
  const auto count = [&](const std::string& entry) {
    return good_scenario("links: [" + entry + "]", t).links.front().links.size();
  };
  // 4 devices, both directions
  EXPECT_EQ(count("{kind: nvlink, rate: 0.5}"), 8U);
  EXPECT_EQ(count("{host: 1, kind: nvlink, rate: 0.5}"), 4U);
  EXPECT_EQ(count("{host: 1, at: 'gpu[0]', kind: nvlink, rate: 0.5}"), 2U);
  EXPECT_EQ(count("{host: 1, from: 'gpu[0]', kind: nvlink, rate: 0.5}"), 1U);
  EXPECT_EQ(count("{from: 'gpu[0-1]', to: bridge, rate: 0.5}"), 4U);
  // cables of two cards
  EXPECT_EQ(count("{host: 0, at: nic, kind: ib, rate: 0.5}"), 4U);
  // one leaf for two hosts
  EXPECT_EQ(count("{at: 'spine[1]', rate: 0.5}"), 2U);
  EXPECT_EQ(count("{kind: nvlink, rate: 1}"), 0U);
}

TEST(Scenario, EffectsOnOneLinkMultiplyAndAFailureBeatsAll) {
  const topologies::Topology t = ways_around(2);
  const Scenario s = good_scenario(R"(
links:
  - {host: 0, at: 'gpu[1]', kind: nvlink, failed: true}
  - {kind: nvlink, rate: 0.5}
  - {host: 0, kind: nvlink, rate: 0.5}
)",
                                   t);
  std::vector<std::int64_t> rates;
  for (const topologies::LinkRate& l : s.links.front().links) rates.push_back(l.bytes_per_second);
  EXPECT_THAT(rates,
              ::testing::UnorderedElementsAre(25'000'000'000, 25'000'000'000, 0, 0, 50'000'000'000,
                                              50'000'000'000, 50'000'000'000, 50'000'000'000));
}

TEST(Scenario, LinksChangeAtTheBeginningAndTheEndOfEntries) {
  const topologies::Topology t = ways_around(2);
  const Scenario s = good_scenario(R"(
links:
  - {host: 0, at: 'gpu[0]', from: 'gpu[0]', kind: nvlink, rate: 0.5, since: 10 us, until: 30 us}
  - {host: 0, at: 'gpu[0]', from: 'gpu[0]', kind: nvlink, rate: 0.5, since: 20 us}
  - {host: 0, at: 'gpu[1]', from: 'gpu[1]', kind: nvlink, rate: 1, since: 15 us}
)",
                                   t);
  std::vector<std::pair<std::int64_t, std::int64_t>> trunk;  // (from, rate)
  for (const Scenario::LinkEra& era : s.links)
    trunk.emplace_back(era.from_ps,
                       era.links.empty() ? 100'000'000'000 : era.links.front().bytes_per_second);
  EXPECT_THAT(trunk, ::testing::ElementsAre(std::pair{0, 100'000'000'000},
                                            std::pair{10'000'000, 50'000'000'000},
                                            std::pair{20'000'000, 25'000'000'000},
                                            std::pair{30'000'000, 50'000'000'000}));
}

TEST(Scenario, JobsHaveHostsOfTheirOwn) {
  const Scenario s = good_scenario(
      "hosts: [2, 0]\njobs: [{name: other, plan: p.json, hosts: [1], start: 5 ms}, {hosts: "
      "[3]}]\nsteps: 4",
      ways_around(4));
  EXPECT_THAT(s.hosts, ::testing::ElementsAre(2U, 0U));
  ASSERT_EQ(s.jobs.size(), 2U);
  EXPECT_EQ(s.jobs[0].plan, "p.json");
  EXPECT_EQ(s.jobs[0].start_ps, 5'000'000'000);
  EXPECT_EQ(s.jobs[1].name, "job 2");
  EXPECT_EQ(s.steps, 4);
  EXPECT_THAT(devices_of(s.hosts, 3, ways_around(4)), ::testing::ElementsAre(4U, 5U, 0U));
  EXPECT_THAT(devices_of({}, 3, ways_around(4)), ::testing::ElementsAre(0U, 1U, 2U));
}

TEST(Scenario, DevicesAreNamedByRankOrByHost) {
  const Scenario s = good_scenario(
      "slow:\n  - {host: 1, slowdown: 1.5}\n  - {host: 1, device: 1, slowdown: 2}\n  - {device: 0, "
      "slowdown: 1.25}",
      ways_around(2));
  EXPECT_THAT(s.compute_ppm, ::testing::ElementsAre(1'250'000, 1'000'000, 1'500'000, 3'000'000));
}

TEST(Scenario, BackgroundIsARateOrAShareOfTheNarrowestLink) {
  const topologies::Topology t = ways_around(2);
  const Scenario s = good_scenario(
      "background: [{from: 0, to: 2, rate: 1 GB/s}, {from: 0, to: 1, share: 0.25}]", t);
  ASSERT_EQ(s.background.size(), 2U);
  EXPECT_EQ(s.background[0].bytes_per_second, 1'000'000'000);
  EXPECT_EQ(s.background[1].bytes_per_second, 25'000'000'000);
  const auto flows = background_flows(s, t);
  ASSERT_TRUE(flows.has_value());
  EXPECT_EQ((*flows)[1].loads.size(), 2U);
}

TEST(Scenario, JitterSeedAndFailuresHaveDefaults) {
  const Scenario s =
      good_scenario("jitter: {sigma: 0.02}\nfailures: {mtbf: 50000 h}", ways_around(1));
  EXPECT_EQ(s.jitter.sigma_ppm, 20'000);
  EXPECT_EQ(s.jitter.of, Jitter::Of::kOperation);
  EXPECT_EQ(s.jitter.seed, 1U);
  EXPECT_EQ(s.failures->mtbf.raw(), 1.8e8);
  EXPECT_EQ(s.failures->checkpoint.raw(), 60);
  EXPECT_FALSE(s.failures->interval.has_value());
  EXPECT_EQ(s.failures->repair.raw(), 0);
}

TEST(Scenario, WhatTheClusterLacksIsRefusedAtItsPlace) {
  EXPECT_THAT(
      faults_of("links: [{host: 9, rate: 0.5}]"),
      HasSubstr("s.yaml:2:16: error[E0007]: no host 9: cluster 'pairs' has 2, numbered from 0"));
  EXPECT_THAT(faults_of("links: [{at: 'nik[1]', rate: 0.5}]"), HasSubstr("did you mean 'nic'?"));
  EXPECT_THAT(faults_of("links: [{at: 'nic[2]', rate: 0.5}]"), HasSubstr("has no part 'nic[2]'"));
  EXPECT_THAT(faults_of("links: [{kind: nvlnk, rate: 0.5}]"), HasSubstr("did you mean 'nvlink'?"));
  EXPECT_THAT(faults_of("links: [{at: spine, kind: nvlink, rate: 0.5}]"),
              HasSubstr("no link of cluster 'pairs' is all of this at once"));
  EXPECT_THAT(faults_of("slow: [{device: 4, slowdown: 2}]"), HasSubstr("no device 4"));
  EXPECT_THAT(faults_of("slow: [{host: 1, device: 2, slowdown: 2}]"),
              HasSubstr("no device 2: a host of cluster 'pairs' has 2"));
  EXPECT_THAT(faults_of("background: [{from: 0, to: 7, rate: 1 GB/s}]"), HasSubstr("no device 7"));
}

TEST(Scenario, WhatMeansNothingIsRefused) {
  EXPECT_THAT(faults_of("name: nothing"), HasSubstr("changes nothing"));
  EXPECT_THAT(faults_of("links: [{rate: 0.5}]"), HasSubstr("which links"));
  EXPECT_THAT(faults_of("links: [{host: 0}]"), HasSubstr("either a rate"));
  EXPECT_THAT(faults_of("links: [{host: 0, rate: 0.5, failed: true}]"), HasSubstr("either a rate"));
  EXPECT_THAT(faults_of("links: [{host: 0, rate: 1.5}]"), HasSubstr("E0005"));
  EXPECT_THAT(faults_of("links: [{host: 0, rate: 0.5, since: 2 ms, until: 1 ms}]"),
              HasSubstr("'until' is not after 'since'"));
  EXPECT_THAT(faults_of("links: [{host: 0, rate: 0.5, since: 1e9 s}]"),
              HasSubstr("'since' lies between"));
  EXPECT_THAT(faults_of("jobs: [{plan: p.json}]"), HasSubstr("E0003"));
  EXPECT_THAT(faults_of("jobs: [{hosts: [2]}]"), HasSubstr("E0005"));
  EXPECT_THAT(faults_of("hosts: [0]\njobs: [{hosts: [0]}]"),
              HasSubstr("host 0 of 'job 1' is one of the plan already"));
  EXPECT_THAT(faults_of("hosts: [0]\nslow: [{device: 0, slowdown: 2}]"),
              HasSubstr("says something about 'jobs'"));
  EXPECT_THAT(faults_of("slow: [{slowdown: 2}]"), HasSubstr("which devices"));
  EXPECT_THAT(faults_of("slow: [{device: 0, slowdown: 0.5}]"), HasSubstr("E0005"));
  EXPECT_THAT(faults_of("jitter: {sigma: 0.5}"), HasSubstr("E0005"));
  EXPECT_THAT(faults_of("jitter: {sgma: 0.1}"), HasSubstr("did you mean 'sigma'?"));
  EXPECT_THAT(faults_of("background: [{from: 0, to: 0, rate: 1 GB/s}]"),
              HasSubstr("sends to itself"));
  EXPECT_THAT(faults_of("background: [{from: 0, rate: 1 GB/s}]"), HasSubstr("E0003"));
  EXPECT_THAT(faults_of("background: [{from: 0, to: 1}]"), HasSubstr("either a rate"));
  EXPECT_THAT(faults_of("failures: {mtbf: 0 s}"), HasSubstr("'mtbf' lies between"));
  EXPECT_THAT(faults_of("failures: {mtbf: 5}"), HasSubstr("E0004"));
  EXPECT_THAT(faults_of("failures: {mtbf: 5 h, spares: 1}"),
              HasSubstr("'repair', which is missing"));
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
