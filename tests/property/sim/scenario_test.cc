// Scenarios over random plans: folded as unfolded, monotone where that holds, functions of their
// seeds.
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/lowering/lower.h"
#include "sim/scenario/goodput.h"
#include "sim/scenario/scenario_run.h"
#include "tests/property/plan/random_plan.h"
#include "tests/unit/sim/scenario_scene.h"

namespace orrery::sim {
namespace {

struct Case {
  plan::Program program;
  costmodel::CostModel cost;
  /// The same prices on another machine.
  [[nodiscard]] costmodel::CostModel price(topologies::Topology machine) const {
    auto made = costmodel::CostModel::make(cost.model(), std::move(machine), cost.profile(),
                                           cost.options());
    ORRERY_CHECK(made.has_value(), "{}", base::to_string(made.error()));
    return *std::move(made);
  }
};

Case priced(const model::ModelSpec& model, plan::Program program, double slowdown) {
  model::Profile profile;
  profile.name = "random";
  profile.overlap_slowdown = slowdown;
  const auto hosts = std::max<std::uint32_t>(2, static_cast<std::uint32_t>(program.world_size) / 2);
  auto cost =
      costmodel::CostModel::make(model, ways_around(hosts), profile,
                                 {.precision = program.precision, .sequence = program.sequence});
  ORRERY_CHECK(cost.has_value(), "{}", base::to_string(cost.error()));
  return {std::move(program), *std::move(cost)};
}

/// Any plan on 2 ranks at least.
Case any_case(std::uint64_t seed) {
  plan::RandomPlan random = plan::PlanDraw(seed).draw(8);
  auto program = plan::lower(random.plan, random.model);
  for (std::uint64_t again = 0; !program || program->world_size < 2 || program->world_size % 2 != 0;
       ++again) {
    random = plan::PlanDraw(base::derive(seed, again)).draw(8);
    program = plan::lower(random.plan, random.model);
  }
  return priced(random.model, *std::move(program), seed % 2 == 0 ? 1.0 : 1.3);
}

/// Data parallelism alone: one group on one stream, so that no two transfers ever share a link, and
/// a step is a maximum of sums of durations.
Case data_parallel(int dp) {
  const model::ModelSpec model = plan::PlanDraw(3).draw(1).model;
  plan::UniformOptions u;
  u.dp = dp;
  u.global_batch = 2 * dp;
  u.sequence = std::min<std::int64_t>(model.max_positions, 64);
  const auto plan = plan::uniform_plan(model, "pairs", std::max(dp / 2, 1), u);
  ORRERY_CHECK(plan.has_value(), "{}", base::to_string(plan.error()));
  auto program = plan::lower(*plan, model);
  ORRERY_CHECK(program.has_value(), "{}", base::to_string(program.error()));
  return priced(model, *std::move(program), 1.0);
}

ScenarioOutcome run(const Case& c, const std::string& body, const ScenarioOptions& options = {}) {
  auto outcome = run_scenario(c.program, c.cost, good_scenario(body, c.cost.topology()), options);
  ORRERY_CHECK(outcome.has_value(), "{}", base::to_string(outcome.error()));
  return *std::move(outcome);
}

std::string any_body(base::Rng& rng, std::uint64_t devices) {
  const auto hosts = devices / 2;
  std::string body;
  const auto add = [&](std::string_view format, auto... values) {
    body += fmt::format(fmt::runtime(format), values...);
  };
  const auto kinds = 1 + rng.below(15);
  if (kinds & 1)
    add("links: [{{host: {}, at: 'gpu[{}]', kind: nvlink, failed: true}}, {{host: {}, kind: ib, "
        "rate: 0.{}}}]\n",
        rng.below(hosts), rng.below(2), rng.below(hosts), 1 + rng.below(9));
  else if (kinds & 2)
    add("links: [{{host: {}, at: 'nic[{}]', kind: ib, failed: true}}, {{at: 'spine[1]', rate: "
        "0.3}}]\n",
        rng.below(hosts), rng.below(2));
  if (kinds & 4)
    add("slow: [{{device: {}, slowdown: 1.{}}}]\n", rng.below(devices), 1 + rng.below(9));
  if (kinds & 8)
    add("background: [{{from: {}, to: {}, share: 0.6}}, {{from: 0, to: {}, rate: 2 GB/s}}]\n",
        devices - 1, rng.below(devices - 1), 1 + rng.below(devices - 1));
  return body.empty() ? "jitter: {sigma: 0}" : body;
}

TEST(ScenarioRun, FoldedEqualsUnfoldedToThePicosecond) {
  std::size_t cells = 0, ranks = 0, slower = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Case c = any_case(seed);
    base::Rng rng(base::derive(seed, 77));
    const std::string body = any_body(rng, c.cost.topology().device_count());
    const ScenarioOutcome folded = run(c, body), unfolded = run(c, body, {.fold = false});
    ASSERT_EQ(folded.report.step_time_ps, unfolded.report.step_time_ps) << "seed " << seed << "\n"
                                                                        << body;
    ASSERT_EQ(folded.report.fingerprint, unfolded.report.fingerprint) << "seed " << seed << "\n"
                                                                      << body;
    ASSERT_EQ(folded.without_ps, unfolded.without_ps);
    cells += folded.cells;
    ranks += unfolded.cells;
    slower += folded.report.step_time_ps > folded.without_ps ? 1 : 0;
  }
  EXPECT_LT(cells, ranks);
  EXPECT_GT(slower, 100U);
}

/// Some of what any_body() says of links, in a part of the step alone.
std::string timed_links(base::Rng& rng, std::uint64_t devices, const std::string& when) {
  const auto hosts = devices / 2;
  const std::string slow = fmt::format("{{host: {}, kind: ib, rate: 0.{}, {}}}", rng.below(hosts),
                                       1 + rng.below(9), when);
  if (rng.below(2) == 0)
    return fmt::format("links: [{}, {{at: 'spine[1]', rate: 0.2, {}}}]\n", slow, when);
  return fmt::format("links: [{}, {{host: {}, at: 'nic[{}]', kind: ib, failed: true, {}}}]\n", slow,
                     rng.below(hosts), rng.below(2), when);
}

TEST(ScenarioRun, LinksThatChangeInTheStepFoldExactlyAndMatchTheirLimits) {
  std::size_t between = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Case c = any_case(seed);
    const auto devices = c.cost.topology().device_count();
    const auto body = [&](const std::string& when) {
      base::Rng rng(base::derive(seed, 78));
      return timed_links(rng, devices, when);
    };
    const ScenarioOutcome always = run(c, body("since: 0 s"));
    ASSERT_EQ(always.report.fingerprint, run(c, body("until: 1000 s")).report.fingerprint)
        << "seed " << seed;
    ASSERT_EQ(always.report.fingerprint, run(c, body("")).report.fingerprint) << "seed " << seed;
    const std::int64_t end_us = always.without_ps / 1'000'000 + 1;
    const ScenarioOutcome never = run(c, body(fmt::format("since: {} us", end_us)));
    ASSERT_EQ(never.report.step_time_ps, never.without_ps) << "seed " << seed;
    const std::string middle =
        body(fmt::format("since: {} us, until: {} us", end_us / 3, 2 * end_us / 3 + 1));
    const ScenarioOutcome folded = run(c, middle), unfolded = run(c, middle, {.fold = false});
    ASSERT_EQ(folded.report.fingerprint, unfolded.report.fingerprint) << "seed " << seed << "\n"
                                                                      << middle;
    between += folded.report.step_time_ps > folded.without_ps &&
                       folded.report.step_time_ps < always.report.step_time_ps
                   ? 1
                   : 0;
  }
  EXPECT_GT(between, 10U);
}

// One group on one stream: the earlier its cables slow down, the later it ends.
TEST(ScenarioRun, EarlierTroubleIsNoShorterForADataParallelStep) {
  const Case c = data_parallel(8);
  const std::int64_t step_us = run(c, "slow: [{device: 0, slowdown: 1}]").without_ps / 1'000'000;
  std::int64_t before = 0;
  for (int part = 10; part >= 0; --part) {
    const std::int64_t now =
        run(c, fmt::format("links: [{{host: 2, kind: ib, rate: 0.3, since: {} us}}]",
                           part * step_us / 10))
            .report.step_time_ps;
    EXPECT_GE(now, before) << part;
    before = now;
  }
  EXPECT_EQ(before, run(c, "links: [{host: 2, kind: ib, rate: 0.3}]").report.step_time_ps);
}

/// Two jobs of half of `hosts` hosts each, side by side or in turn.
ScenarioOutcome two_jobs(const Case& c, const Case& other, bool in_turn, bool fold) {
  const std::uint32_t hosts = c.cost.topology().hosts();
  std::string ours, theirs;
  for (std::uint32_t h = 0; h < hosts; ++h) {
    std::string& list = (in_turn ? h % 2 == 0 : h < hosts / 2) ? ours : theirs;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", h);
  }
  const std::string body =
      fmt::format("hosts: [{}]\njobs: [{{hosts: [{}], start: 3 us}}]\nsteps: 2", ours, theirs);
  return run(c, body, {.fold = fold, .jobs = {{&other.program, other.cost}}});
}

TEST(ScenarioRun, JobsFoldExactlyAndMeetOnLinksAlone) {
  std::size_t slowed = 0, apart = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Case c = any_case(seed);
    const auto hosts =
        std::max<std::uint32_t>(2, static_cast<std::uint32_t>(c.program.world_size) / 2);
    c.cost = c.price(ways_around(2 * hosts));
    const bool in_turn = seed % 3 > 0;
    const ScenarioOutcome folded = two_jobs(c, c, in_turn, true),
                          unfolded = two_jobs(c, c, in_turn, false);
    ASSERT_EQ(folded.report.fingerprint, unfolded.report.fingerprint) << "seed " << seed;
    ASSERT_EQ(folded.jobs.size(), 2U);
    for (std::size_t j = 0; j < 2; ++j) {
      ASSERT_EQ(folded.jobs[j].together_ps, unfolded.jobs[j].together_ps) << "seed " << seed;
      ASSERT_EQ(folded.jobs[j].alone_ps, unfolded.jobs[j].alone_ps) << "seed " << seed;
      ASSERT_GE(folded.jobs[j].steps, 2U);
      ASSERT_TRUE(folded.shared_links > 0 || folded.jobs[j].slowdown() == 0) << "seed " << seed;
    }
    ASSERT_EQ(folded.jobs[0].alone_ps, folded.without_ps) << "seed " << seed;
    slowed += folded.jobs[0].together_ps > folded.jobs[0].alone_ps ? 1 : 0;
    apart += folded.shared_links == 0 ? 1 : 0;
    for (const ScenarioOutcome::LinkUse& l : folded.shared)
      ASSERT_LE(l.of_jobs[0] + l.of_jobs[1], 1 + 1e-9);
  }
  EXPECT_GT(slowed, 3U);
  EXPECT_GT(apart, 5U);
}

TEST(ScenarioRun, FactorsOfOneChangeNothing) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Case c = any_case(seed);
    const auto plain = simulate_ranks(c.program, c.cost);
    ASSERT_TRUE(plain.has_value());
    const ScenarioOutcome one = run(
        c, "links: [{kind: ib, rate: 1}]\nslow: [{device: 0, slowdown: 1}]\njitter: {sigma: 0}");
    ASSERT_EQ(one.report.fingerprint, plain->fingerprint);
    ASSERT_EQ(one.cost(), 0);
    for (const ScenarioOutcome::Stage& s : one.stages)
      ASSERT_EQ(s.compute_ps + s.communication_ps + s.waiting_ps, 0);
  }
}

TEST(ScenarioRun, SlowerPartsNeverMakeADataParallelStepFaster) {
  const Case c = data_parallel(8);
  std::int64_t before = 0;
  for (const char* slowdown : {"1", "1.1", "1.5", "3"}) {
    const std::int64_t now =
        run(c, fmt::format("slow: [{{device: 5, slowdown: {}}}]", slowdown)).report.step_time_ps;
    EXPECT_GE(now, before) << slowdown;
    before = now;
  }
  before = 0;
  for (const char* rate : {"1", "0.9", "0.5", "0.1"}) {
    const std::int64_t now =
        run(c, fmt::format("links: [{{host: 2, kind: ib, rate: {}}}]", rate)).report.step_time_ps;
    EXPECT_GE(now, before) << rate;
    before = now;
  }
  before = 0;
  for (const char* rate : {"1 B/s", "1 GB/s", "2 GB/s", "100 GB/s"}) {
    const std::int64_t now =
        run(c, fmt::format("background: [{{from: 1, to: 2, rate: {}}}]", rate)).report.step_time_ps;
    EXPECT_GE(now, before) << rate;
    before = now;
  }
  EXPECT_GT(before, run(c, "background: [{from: 1, to: 2, rate: 1 B/s}]").report.step_time_ps);
}

TEST(ScenarioRun, TheOthersWaitForTheSlowDevice) {
  const ScenarioOutcome o = run(data_parallel(4), "slow: [{device: 2, slowdown: 2}]");
  EXPECT_EQ(o.stages[0].slowest, 2);
  EXPECT_GT(o.stages[0].waiting_ps, 0);
  EXPECT_GT(o.stages[0].compute_ps, 0);
  EXPECT_LE(std::abs(o.stages[0].compute_ps + o.stages[0].communication_ps +
                     o.stages[0].waiting_ps - (o.report.step_time_ps - o.without_ps)),
            2);
}

TEST(ScenarioRun, JitterIsAFunctionOfItsSeed) {
  const Case c = any_case(5);
  const auto step = [&](const char* body) { return run(c, body).report.fingerprint; };
  EXPECT_EQ(step("jitter: {sigma: 0.05}\nseed: 3"), step("jitter: {sigma: 0.05}\nseed: 3"));
  EXPECT_NE(step("jitter: {sigma: 0.05}\nseed: 3"), step("jitter: {sigma: 0.05}\nseed: 4"));
  EXPECT_NE(step("jitter: {sigma: 0.05}\nseed: 3"),
            step("jitter: {sigma: 0.05, of: device}\nseed: 3"));
}

TEST(ScenarioRun, MonteCarloIsOrderedBracketedAndTheSameOnAnyThreads) {
  const Case c = data_parallel(4);
  for (const char* body : {"jitter: {sigma: 0.1}", "jitter: {sigma: 0.1, of: device}"}) {
    const ScenarioOutcome one = run(c, body, {.draws = 40}),
                          three = run(c, body, {.draws = 40, .threads = 3});
    ASSERT_EQ(one.drawn_ps.size(), 40U);
    EXPECT_EQ(one.drawn_ps, three.drawn_ps);
    EXPECT_TRUE(std::is_sorted(one.drawn_ps.begin(), one.drawn_ps.end()));
    EXPECT_LT(one.drawn_ps.front(), one.drawn_ps.back());
    EXPECT_LE(percentile(one.drawn_ps, 5), percentile(one.drawn_ps, 50));
    EXPECT_LE(percentile(one.drawn_ps, 50), percentile(one.drawn_ps, 99));
    const auto all_at = [&](std::int64_t ppm) {
      const auto r =
          simulate_ranks(c.program, c.cost, {.compute_ppm = std::vector<std::int64_t>(4, ppm)});
      return r->step_ps;
    };
    EXPECT_GE(one.drawn_ps.front(), all_at(700'000));
    EXPECT_LE(one.drawn_ps.back(), all_at(1'300'000));
  }
}

TEST(ScenarioRun, WhatCannotBeAnsweredIsRefused) {
  const Case c = data_parallel(4);
  const auto refused = [&](const char* body, const ScenarioOptions& options) {
    const auto outcome =
        run_scenario(c.program, c.cost, good_scenario(body, c.cost.topology()), options);
    EXPECT_FALSE(outcome.has_value()) << body;
  };
  refused("slow: [{device: 0, slowdown: 2}]", {.draws = 10});
  refused("links: [{host: 1, kind: ib, failed: true}]", {});
  refused("links: [{host: 1, kind: ib, failed: true, since: 1 us, until: 2 us}]", {});
  // where the plan runs
  refused("jobs: [{hosts: [1]}]", {.jobs = {{&c.program, c.cost}}});
  // too few devices
  refused("hosts: [0]\njobs: [{hosts: [1]}]", {.jobs = {{&c.program, c.cost}}});
}

}  // namespace
}  // namespace orrery::sim
