// Scenarios over random plans: folded as unfolded, monotone where that holds, functions of their seeds.
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/lower.h"
#include "sim/scenario_run.h"
#include "tests/property/plan/random_plan.h"
#include "tests/unit/sim/scenario_scene.h"

namespace orrery::sim {
namespace {

struct Case {
  plan::Program program;
  costmodel::CostModel cost;
};

Case priced(const model::ModelSpec& model, plan::Program program, double slowdown) {
  model::Profile profile;
  profile.name = "random";
  profile.overlap_slowdown = slowdown;
  const auto hosts = std::max<std::uint32_t>(2, static_cast<std::uint32_t>(program.world_size) / 2);
  auto cost = costmodel::CostModel::make(model, ways_around(hosts), profile, {.precision = program.precision, .sequence = program.sequence});
  ORRERY_CHECK(cost.has_value(), "{}", base::to_string(cost.error()));
  return {std::move(program), *std::move(cost)};
}

/// Any plan on 2 ranks at least.
Case any_case(std::uint64_t seed) {
  plan::RandomPlan random = plan::PlanDraw(seed).draw(8);
  auto program = plan::lower(random.plan, random.model);
  for (std::uint64_t again = 0; !program || program->world_size < 2 || program->world_size % 2 != 0; ++again) {
    random = plan::PlanDraw(base::derive(seed, again)).draw(8);
    program = plan::lower(random.plan, random.model);
  }
  return priced(random.model, *std::move(program), seed % 2 == 0 ? 1.0 : 1.3);
}

/// Data parallelism alone: one group on one stream, so that no two transfers ever share a link, and a step is a maximum of sums of durations.
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
  const auto add = [&](std::string_view format, auto... values) { body += fmt::format(fmt::runtime(format), values...); };
  const auto kinds = 1 + rng.below(15);
  if (kinds & 1) add("links: [{{host: {}, at: 'gpu[{}]', kind: nvlink, failed: true}}, {{host: {}, kind: ib, rate: 0.{}}}]\n", rng.below(hosts), rng.below(2), rng.below(hosts), 1 + rng.below(9));
  else if (kinds & 2) add("links: [{{host: {}, at: 'nic[{}]', kind: ib, failed: true}}, {{at: 'spine[1]', rate: 0.3}}]\n", rng.below(hosts), rng.below(2));
  if (kinds & 4) add("slow: [{{device: {}, slowdown: 1.{}}}]\n", rng.below(devices), 1 + rng.below(9));
  if (kinds & 8) add("background: [{{from: {}, to: {}, share: 0.6}}, {{from: 0, to: {}, rate: 2 GB/s}}]\n", devices - 1, rng.below(devices - 1), 1 + rng.below(devices - 1));
  return body.empty() ? "jitter: {sigma: 0}" : body;
}

TEST(ScenarioRun, FoldedEqualsUnfoldedToThePicosecond) {
  std::size_t cells = 0, ranks = 0, slower = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Case c = any_case(seed);
    base::Rng rng(base::derive(seed, 77));
    const std::string body = any_body(rng, c.cost.topology().device_count());
    const ScenarioOutcome folded = run(c, body), unfolded = run(c, body, {.fold = false});
    ASSERT_EQ(folded.report.step_time_ps, unfolded.report.step_time_ps) << "seed " << seed << "\n" << body;
    ASSERT_EQ(folded.report.fingerprint, unfolded.report.fingerprint) << "seed " << seed << "\n" << body;
    ASSERT_EQ(folded.without_ps, unfolded.without_ps);
    cells += folded.cells;
    ranks += unfolded.cells;
    slower += folded.report.step_time_ps > folded.without_ps ? 1 : 0;
  }
  EXPECT_LT(cells, ranks);
  EXPECT_GT(slower, 100U);
}

TEST(ScenarioRun, FactorsOfOneChangeNothing) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Case c = any_case(seed);
    const auto plain = simulate_ranks(c.program, c.cost);
    ASSERT_TRUE(plain.has_value());
    const ScenarioOutcome one = run(c, "links: [{kind: ib, rate: 1}]\nslow: [{device: 0, slowdown: 1}]\njitter: {sigma: 0}");
    ASSERT_EQ(one.report.fingerprint, plain->fingerprint);
    ASSERT_EQ(one.cost(), 0);
    for (const ScenarioOutcome::Stage& s : one.stages) ASSERT_EQ(s.compute_ps + s.communication_ps + s.waiting_ps, 0);
  }
}

TEST(ScenarioRun, SlowerPartsNeverMakeADataParallelStepFaster) {
  const Case c = data_parallel(8);
  std::int64_t before = 0;
  for (const char* slowdown : {"1", "1.1", "1.5", "3"}) {
    const std::int64_t now = run(c, fmt::format("slow: [{{device: 5, slowdown: {}}}]", slowdown)).report.step_time_ps;
    EXPECT_GE(now, before) << slowdown;
    before = now;
  }
  before = 0;
  for (const char* rate : {"1", "0.9", "0.5", "0.1"}) {
    const std::int64_t now = run(c, fmt::format("links: [{{host: 2, kind: ib, rate: {}}}]", rate)).report.step_time_ps;
    EXPECT_GE(now, before) << rate;
    before = now;
  }
  before = 0;
  for (const char* rate : {"1 B/s", "1 GB/s", "2 GB/s", "100 GB/s"}) {
    const std::int64_t now = run(c, fmt::format("background: [{{from: 1, to: 2, rate: {}}}]", rate)).report.step_time_ps;
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
  EXPECT_LE(std::abs(o.stages[0].compute_ps + o.stages[0].communication_ps + o.stages[0].waiting_ps - (o.report.step_time_ps - o.without_ps)), 2);
}

TEST(ScenarioRun, JitterIsAFunctionOfItsSeed) {
  const Case c = any_case(5);
  const auto step = [&](const char* body) { return run(c, body).report.fingerprint; };
  EXPECT_EQ(step("jitter: {sigma: 0.05}\nseed: 3"), step("jitter: {sigma: 0.05}\nseed: 3"));
  EXPECT_NE(step("jitter: {sigma: 0.05}\nseed: 3"), step("jitter: {sigma: 0.05}\nseed: 4"));
  EXPECT_NE(step("jitter: {sigma: 0.05}\nseed: 3"), step("jitter: {sigma: 0.05, of: device}\nseed: 3"));
}

TEST(ScenarioRun, MonteCarloIsOrderedBracketedAndTheSameOnAnyThreads) {
  const Case c = data_parallel(4);
  for (const char* body : {"jitter: {sigma: 0.1}", "jitter: {sigma: 0.1, of: device}"}) {
    const ScenarioOutcome one = run(c, body, {.draws = 40}), three = run(c, body, {.draws = 40, .threads = 3});
    ASSERT_TRUE(one.draws && three.draws);
    EXPECT_EQ(one.draws->step_ps, three.draws->step_ps);
    EXPECT_TRUE(std::is_sorted(one.draws->step_ps.begin(), one.draws->step_ps.end()));
    EXPECT_LT(one.draws->step_ps.front(), one.draws->step_ps.back());
    EXPECT_LE(one.draws->percentile_ps(5), one.draws->percentile_ps(50));
    EXPECT_LE(one.draws->percentile_ps(50), one.draws->percentile_ps(99));
    const auto all_at = [&](std::int64_t ppm) {
      const auto r = simulate_ranks(c.program, c.cost, {.compute_ppm = std::vector<std::int64_t>(4, ppm)});
      return r->step_ps;
    };
    EXPECT_GE(one.draws->step_ps.front(), all_at(700'000));
    EXPECT_LE(one.draws->step_ps.back(), all_at(1'300'000));
  }
}

TEST(ScenarioRun, WhatCannotBeAnsweredIsRefused) {
  const Case c = data_parallel(4);
  const auto refused = [&](const char* body, const ScenarioOptions& options) {
    const auto outcome = run_scenario(c.program, c.cost, good_scenario(body, c.cost.topology()), options);
    EXPECT_FALSE(outcome.has_value()) << body;
  };
  refused("slow: [{device: 0, slowdown: 2}]", {.draws = 10});
  refused("links: [{host: 1, kind: ib, failed: true}]", {});
}

}  // namespace
}  // namespace orrery::sim
