#include "search/explain/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "search/space/space_text.h"
#include "tests/unit/search/tiny_fixture.h"

namespace orrery::search {
namespace {

std::int64_t sum(const Parts& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
}
std::int64_t part(const Parts& parts, sim::TimePart p) {
  return parts[static_cast<std::size_t>(p)];
}

PlanRequest tiny_problem() {
  PlanRequest request;
  request.cluster = "tiny";
  request.memory_bytes = 1 << 30;
  request.global_batch = 8;
  return request;
}

ExplainRequest of_best(const costmodel::CostModel& cost, const PlanRequest& problem) {
  const auto answer = find_plan(cost, problem);
  EXPECT_TRUE(answer.has_value() && !answer->candidates.empty());
  ExplainRequest request;
  request.plan = answer->candidates.front().plan;
  request.problem = problem;
  return request;
}

plan::Plan uniform(int tp, int pp, int dp, std::int64_t micro_batch = 1) {
  plan::UniformOptions o{
      .tp = tp, .pp = pp, .dp = dp, .micro_batch = micro_batch, .global_batch = 8, .sequence = 128};
  return *plan::uniform_plan(tiny_model(4), "tiny", 1, o);
}

TEST(SimulatedPlan, PartsAddUpToTheStepOnEveryStage) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  for (const plan::Plan& p :
       {uniform(1, 1, 4), uniform(2, 2, 1), uniform(1, 4, 1), uniform(4, 1, 1)}) {
    const auto a = simulate_plan(cost, p);
    ASSERT_TRUE(a.has_value()) << base::to_string(a.error());
    EXPECT_EQ(sum(a->parts()), a->step_ps());
    for (const sim::StageReport& s : a->report.stages) EXPECT_EQ(sum(s.parts), a->step_ps());
  }
}

TEST(SimulatedPlan, TheCriticalStageWaitsLeast) {
  SimulatedPlan a;
  a.report.stages.resize(3);
  const std::int64_t waits[] = {7, 2, 2};
  for (std::size_t i = 0; i < 3; ++i)
    a.report.stages[i].parts[static_cast<std::size_t>(sim::TimePart::kBubble)] = waits[i];
  EXPECT_EQ(a.critical_stage(), 1);
}

TEST(SimulatedPlan, DifferencesAddUpToTheDifferenceOfTheSteps) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  const SimulatedPlan a = *simulate_plan(cost, uniform(1, 1, 4)),
                      b = *simulate_plan(cost, uniform(4, 1, 1));
  EXPECT_EQ(sum(difference(a, b)), b.step_ps() - a.step_ps());
  EXPECT_GT(part(difference(a, b), sim::TimePart::kTensor), 0);
  EXPECT_LT(part(difference(a, b), sim::TimePart::kData), 0);
}

// 1 - 10/20 of the work; 1 - 4/8 of the memory. Time that a stage waits is no work.
TEST(Balance, IsOneLessTheLargestStagesShare) {
  constexpr auto kBubble = static_cast<std::size_t>(sim::TimePart::kBubble);
  const auto balance = [](const std::vector<std::pair<std::int64_t, std::int64_t>>& stages) {
    sim::SimReport report;
    report.step_time_ps = 12;
    for (const auto& [work_ps, bytes] : stages) {
      sim::StageReport& stage = report.stages.emplace_back();
      stage.parts[kBubble] = 12 - work_ps;
      stage.peak_memory_bytes = bytes;
    }
    return balance_of(report);
  };
  EXPECT_DOUBLE_EQ(balance({{10, 4}, {5, 2}, {5, 2}}).time, 0.5);
  EXPECT_DOUBLE_EQ(balance({{10, 4}, {5, 2}, {5, 2}}).memory, 0.5);
  EXPECT_DOUBLE_EQ(balance({{5, 1}, {5, 1}, {5, 1}, {5, 1}}).time, 0.75);
  EXPECT_DOUBLE_EQ(balance({{7, 3}}).time, 0);
  EXPECT_DOUBLE_EQ(balance({{0, 3}, {0, 3}}).time, 0.5);
}

TEST(Changes, NameWhatTheOtherPlanDoes) {
  EXPECT_TRUE(changes(uniform(1, 1, 4), uniform(1, 1, 4)).empty());
  EXPECT_THAT(changes(uniform(1, 1, 4), uniform(2, 1, 2)),
              testing::ElementsAre("micro-batches 2 → 4", "tp 1 → 2", "dp 4 → 2",
                                   "embedding and head tp1 dp4 → tp2 dp2"));
  plan::Plan mixed = uniform(1, 1, 4);
  mixed.stages[0].runs.push_back(mixed.stages[0].runs[0]);
  mixed.stages[0].runs[0].count = 1;
  mixed.stages[0].runs[1].count = 3;
  mixed.stages[0].runs[0].strategy.recompute = plan::Recompute::kFull;
  EXPECT_THAT(changes(uniform(1, 1, 4), mixed),
              testing::ElementsAre("recomputation none → full (1 layer), none (3 layers)"));
}

// The best uniform plan and the one asked for count as much as those of the search: none known is
// nearer than the stated gap.
TEST(Explain, TheGapIsToTheNearestPlanKnown) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  ExplainRequest request = of_best(cost, tiny_problem());
  request.others = 1;
  request.versus_plan = uniform(4, 1, 1);
  const auto e = explain(cost, request);
  ASSERT_TRUE(e.has_value());
  ASSERT_TRUE(e->uniform && e->versus && e->versus->comparison);
  std::vector<std::int64_t> steps{e->plan.step_ps()};
  for (const Comparison* c : rivals(*e)) {
    EXPECT_NE(c->simulated.plan, e->plan.plan);
    steps.push_back(c->simulated.step_ps());
  }
  ASSERT_GE(steps.size(), 3U);
  EXPECT_TRUE(std::ranges::is_sorted(steps.begin() + 1, steps.end()));
  const std::set<std::int64_t> known(steps.begin(), steps.end());
  EXPECT_TRUE(known.contains(e->versus->comparison->simulated.step_ps()));
  EXPECT_TRUE(known.contains(e->uniform->simulated.step_ps()));
  std::ranges::sort(steps);
  EXPECT_EQ(e->gap_ps, steps[1] - steps[0]);
}

TEST(Explain, HasFiveRunnersUpWhosePartsExplainTheDifference) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  const auto e = explain(cost, of_best(cost, tiny_problem()));
  ASSERT_TRUE(e.has_value()) << base::to_string(e.error());
  EXPECT_EQ(e->others.size(), 5U);
  for (std::size_t i = 0; i < e->others.size(); ++i) {
    const Comparison& c = e->others[i];
    EXPECT_EQ(sum(c.difference), c.simulated.step_ps() - e->plan.step_ps());
    EXPECT_NE(c.simulated.plan, e->plan.plan);
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(c.simulated.plan, e->others[j].simulated.plan);
    if (i > 0) {
      EXPECT_LE(e->others[i - 1].simulated.step_ps(), c.simulated.step_ps());
    }
  }
  EXPECT_EQ(e->limits.compute_ps + e->limits.communication_ps + e->limits.bubble_ps,
            e->plan.step_ps());
  EXPECT_TRUE(e->limits.fits());
}

TEST(Decisions, AreThoseThatTheSpaceLeavesAChoiceIn) {
  const plan::Plan p = uniform(2, 1, 2);
  std::set<std::string> made;
  for (const Alternative& a : alternatives(p, Space{}, 4))
    made.insert(a.made + " / " + a.otherwise);
  EXPECT_THAT(made, testing::IsSupersetOf({"tp 2 / tp 1", "tp 2 / tp 4", "1 pipeline rank / 2",
                                           "4 micro-batches / 2", "4 micro-batches / 8",
                                           "zero 0 / zero 3 alone",
                                           "no recomputation / some in every layer"}));
  plan::Plan split = p;
  for (plan::Stage& stage : split.stages) stage.runs[0].strategy.sequence_parallel = true;
  made.clear();
  for (const Alternative& a : alternatives(split, Space{}, 4)) {
    made.insert(a.made + " / " + a.otherwise);
    if (a.otherwise == "in pieces") {
      EXPECT_EQ(a.space.fix_tp, 2);
    }
  }
  EXPECT_TRUE(made.contains("tensor collectives whole / in pieces"));
  Space fixed;
  fixed.fix_tp = 2;
  fixed.fix_pp = 1;
  fixed.fix_micro_batches = 4;
  fixed.fix_tensor_pieces = 1;
  fixed.zero3 = fixed.recompute_full = fixed.recompute_selective = false;
  EXPECT_THAT(alternatives(p, fixed, 4), testing::IsEmpty());
}

TEST(Decisions, OfTheBestPlanAreWorthSomethingAndTheirPlansDecideOtherwise) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  const ExplainRequest request = of_best(cost, tiny_problem());
  const auto e = explain(cost, request);
  ASSERT_TRUE(e.has_value()) << base::to_string(e.error());
  EXPECT_GE(e->decisions.size(), 4U);
  for (const Decision& d : e->decisions) {
    if (!d.best) continue;
    EXPECT_GE(d.best->simulated.step_ps(), e->plan.step_ps()) << d.made << ", " << d.otherwise;
    EXPECT_NE(d.best->simulated.plan, e->plan.plan) << d.made << ", " << d.otherwise;
    EXPECT_EQ(sum(d.best->difference), d.best->simulated.step_ps() - e->plan.step_ps());
    if (d.made.ends_with("pipeline rank")) {
      EXPECT_EQ(std::to_string(d.best->simulated.plan.pipeline_degree()), d.otherwise);
    }
    if (d.made.find("micro-batch") != std::string::npos &&
        d.made.find("every") == std::string::npos) {
      EXPECT_EQ(std::to_string(d.best->simulated.plan.micro_batches), d.otherwise);
    }
  }
}

TEST(Explain, MoreOfAMachineIsNeverSlowerAndLessNeverFaster) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  const auto e = explain(cost, of_best(cost, tiny_problem()));
  ASSERT_TRUE(e.has_value());
  ASSERT_EQ(e->what_ifs.size(), 6U);
  for (const WhatIf& w : e->what_ifs) {
    ASSERT_TRUE(w.step_ps.has_value()) << w.what;
    EXPECT_GE(w.change_ppm > 0 ? e->plan.step_ps() - *w.step_ps : *w.step_ps - e->plan.step_ps(), 0)
        << w.what;
    ASSERT_TRUE(w.best.has_value());
  }
  ASSERT_EQ(e->elasticities.size(), 2U);
  // Bandwidth and compute make up the step but for latencies; both fall with more.
  for (const Elasticity& x : e->elasticities) {
    EXPECT_LE(x.value, 0.0) << x.what;
    EXPECT_GE(x.value, -1.02) << x.what;
  }
}

// All compute, nothing to send: 10 % more of it takes 1/1.1 of the time. (0.90909 - 1.11111) / 0.2
// = -1.0101.
TEST(Explain, OneDeviceIsBoundByComputationAlone) {
  const costmodel::CostModel cost = tiny_cost(1, 2);
  const auto e = explain(cost, of_best(cost, tiny_problem()));
  ASSERT_TRUE(e.has_value());
  EXPECT_EQ(e->bound, TimeBound::kCompute);
  EXPECT_EQ(e->limits.compute_ps, e->plan.step_ps());
  EXPECT_EQ(e->limits.communication_ps, 0);
  ASSERT_EQ(e->elasticities.size(), 2U);
  EXPECT_EQ(e->elasticities[0].what, "bandwidth");
  EXPECT_EQ(e->elasticities[0].value, 0.0);
  EXPECT_NEAR(e->elasticities[1].value, -1.0101, 1e-3);
  for (const LinkEffect& link : e->limits.links) EXPECT_EQ(link.saved_ps, 0);
}

// Links of 1 GB/s: the all-reduces of activations outlast the products between them.
TEST(Explain, ATensorParallelPlanOnSlowLinksIsBoundByCommunication) {
  const auto cost =
      costmodel::CostModel::make(tiny_model(4), tiny_cluster(4).with_link_rates(50'000),
                                 std::nullopt, {model::Precision::kBFloat16, 128});
  ASSERT_TRUE(cost.has_value());
  ExplainRequest request;
  request.problem = tiny_problem();
  request.plan = uniform(4, 1, 1);
  const auto e = explain(*cost, request);
  ASSERT_TRUE(e.has_value());
  EXPECT_EQ(e->bound, TimeBound::kCommunication);
  EXPECT_GT(e->limits.communication_ps, e->limits.compute_ps);
}

// One micro-batch through four stages: every stage waits for three quarters of the step.
TEST(Explain, OneMicroBatchThroughFourStagesIsBoundByTheBubble) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  ExplainRequest request;
  request.problem = tiny_problem();
  request.plan = uniform(1, 4, 1, 8);
  const auto e = explain(cost, request);
  ASSERT_TRUE(e.has_value());
  EXPECT_EQ(e->bound, TimeBound::kBubble);
  EXPECT_GT(2 * e->limits.bubble_ps, e->plan.step_ps());
}

TEST(Explain, NamesTheLinkThatCommunicationWaitsFor) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  ExplainRequest request = of_best(cost, tiny_problem());
  request.plan = uniform(4, 1, 1);
  const auto e = explain(cost, request);
  ASSERT_TRUE(e.has_value());
  EXPECT_EQ(e->limits.dearest_communication, sim::TimePart::kTensor);
  ASSERT_EQ(e->limits.links.size(), 1U);
  EXPECT_EQ(e->limits.links.front().kind, "nvlink");
  EXPECT_GT(e->limits.links.front().saved_ps, 0);
}

TEST(Explain, TwiceOfEverythingIsRankedAndNeverLosesToTheKeptPlan) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  const auto e = explain(cost, of_best(cost, tiny_problem()));
  ASSERT_TRUE(e.has_value());
  std::set<std::string> what;
  for (const Improvement& x : e->improvements) {
    what.insert(x.what);
    if (x.kept_gain_ppm) {
      EXPECT_GE(x.best_gain_ppm, *x.kept_gain_ppm) << x.what;
    }
    if (x.what != "twice the global batch (16)") {
      EXPECT_GE(x.best_gain_ppm, 0) << x.what;
    }
  }
  // The tiny cluster is none of the catalog: more hosts of it are not known.
  EXPECT_THAT(what,
              testing::ElementsAre("computation twice as fast", "devices of twice the memory",
                                   "links of twice the bandwidth", "twice the global batch (16)"));
  EXPECT_TRUE(
      std::ranges::is_sorted(e->improvements, std::greater<>(), &Improvement::best_gain_ppm));
}

TEST(Explain, SaysHowMuchMemoryWouldEndRecomputation) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  PlanRequest problem = tiny_problem();
  problem.space = *restrict_to_dimensions("dp", {});
  problem.space.recompute_full = true;
  problem.space.fix_micro_batches = 1;
  const SimulatedPlan stores_all = *simulate_plan(cost, uniform(1, 1, 4, 2));
  problem.memory_bytes = stores_all.peak_bytes() - 1;
  const auto e = explain(cost, of_best(cost, problem));
  ASSERT_TRUE(e.has_value());
  EXPECT_GT(part(e->plan.parts(), sim::TimePart::kRecompute), 0);
  ASSERT_TRUE(e->memory_marks.no_recomputation.has_value());
  EXPECT_EQ(e->memory_marks.no_recomputation->bytes, std::int64_t{1} << 30);  // whole GiB
  EXPECT_EQ(part(e->memory_marks.no_recomputation->best.parts(), sim::TimePart::kRecompute), 0);
  // equal where reductions outlast what is recomputed
  EXPECT_LE(e->memory_marks.no_recomputation->best.step_ps(), e->plan.step_ps());
  problem.memory_bytes = stores_all.peak_bytes();
  const auto roomy = explain(cost, of_best(cost, problem));
  ASSERT_TRUE(roomy.has_value());
  EXPECT_FALSE(roomy->memory_marks.no_recomputation.has_value());
}

TEST(Explain, SaysWhatWouldEndTheBubble) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  ExplainRequest request;
  request.problem = tiny_problem();
  request.plan = uniform(1, 4, 1, 8);
  const auto e = explain(cost, request);
  ASSERT_TRUE(e.has_value());
  ASSERT_TRUE(e->release.has_value());
  EXPECT_NE(e->release->then, TimeBound::kBubble);
  EXPECT_GT(e->release->gain_ppm, 0);
}

TEST(KnownPlans, KeepsEveryPlanOnceAndGivesTheFastestOfASpace) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  KnownPlans known(cost, 1 << 30, 1);
  for (int twice = 0; twice < 2; ++twice) {
    for (const plan::Plan& p : {uniform(1, 1, 4), uniform(4, 1, 1), uniform(1, 4, 1)})
      ASSERT_TRUE(known.add(p).has_value());
  }
  EXPECT_EQ(known.simulated(), 3U);
  ASSERT_EQ(known.plans().size(), 3U);
  EXPECT_TRUE(std::ranges::is_sorted(known.plans(), {}, &SimulatedPlan::step_ps));
  ASSERT_NE(known.best(*fix_values("pp=4", Space{})), nullptr);
  EXPECT_EQ(known.best(*fix_values("pp=4", Space{}))->plan, uniform(1, 4, 1));
  EXPECT_EQ(known.best(*fix_values("pp=2", Space{})), nullptr);
  KnownPlans narrow(cost, 1000, 1);
  ASSERT_TRUE(narrow.add(uniform(1, 1, 4)).has_value());
  EXPECT_TRUE(narrow.plans().empty());
}

TEST(Explain, VersusAValueIsTheBestPlanWithIt) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  ExplainRequest request = of_best(cost, tiny_problem());
  request.versus_space = VersusSpace{"tp=4,pp=1", *fix_values("tp=4,pp=1", Space{})};
  const auto e = explain(cost, request);
  ASSERT_TRUE(e.has_value());
  ASSERT_TRUE(e->versus && e->versus->comparison);
  EXPECT_TRUE(e->versus->fits);
  const Comparison& c = *e->versus->comparison;
  for (const plan::LayerRun& run : c.simulated.plan.stages[0].runs) EXPECT_EQ(run.strategy.tp, 4);
  EXPECT_EQ(c.simulated.plan.pipeline_degree(), 1);
  EXPECT_EQ(sum(c.difference), c.simulated.step_ps() - e->plan.step_ps());
}

TEST(Explain, VersusAPlanIsThatPlan) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  ExplainRequest request = of_best(cost, tiny_problem());
  request.versus_plan = uniform(4, 1, 1);
  const auto e = explain(cost, request);
  ASSERT_TRUE(e.has_value());
  ASSERT_TRUE(e->versus && e->versus->comparison);
  EXPECT_EQ(e->versus->comparison->simulated.plan, uniform(4, 1, 1));
  EXPECT_GT(part(e->versus->comparison->difference, sim::TimePart::kTensor), 0);
  EXPECT_EQ(sum(e->versus->comparison->difference),
            simulate_plan(cost, uniform(4, 1, 1))->step_ps() - e->plan.step_ps());
}

TEST(Explain, OneCandidateASearchStillGivesFiveOthers) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  PlanRequest problem = tiny_problem();
  problem.top = 1;
  const auto e = explain(cost, of_best(cost, problem));
  ASSERT_TRUE(e.has_value());
  EXPECT_EQ(e->others.size(), 5U);
}

TEST(Explain, VersusWhatDoesNotFitSaysWhereAndByHowMuch) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  PlanRequest problem = tiny_problem();
  problem.memory_bytes = 20'000'000;
  ExplainRequest request = of_best(cost, problem);
  request.versus_space = VersusSpace{"tp=1,pp=1,zero=0", *fix_values("tp=1,pp=1,zero=0", Space{})};
  const auto e = explain(cost, request);
  ASSERT_TRUE(e.has_value());
  ASSERT_TRUE(e->versus && e->versus->comparison);
  EXPECT_FALSE(e->versus->fits);
  EXPECT_GT(e->versus->shortfall_bytes, 0);
  EXPECT_EQ(e->versus->shortfall_bytes,
            e->versus->comparison->simulated.peak_bytes() - problem.memory_bytes);
  EXPECT_EQ(e->versus->stage, 0);
  EXPECT_FALSE(e->versus->relaxations.empty());
}

TEST(Explain, VersusDegreesBeyondTheClusterHasAReason) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  ExplainRequest request = of_best(cost, tiny_problem());
  request.versus_space = VersusSpace{"tp=4,pp=2", *fix_values("tp=4,pp=2", Space{})};
  const auto e = explain(cost, request);
  ASSERT_TRUE(e.has_value());
  ASSERT_TRUE(e->versus.has_value());
  EXPECT_FALSE(e->versus->comparison.has_value());
  ASSERT_FALSE(e->versus->reasons.empty());
  EXPECT_EQ(e->versus->reasons.front().text, "8 ranks do not divide 4 devices");
}

TEST(Explain, APlanThatDoesNotFitIsToldWaysThatDo) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  ExplainRequest request;
  request.problem = tiny_problem();
  request.plan = uniform(1, 1, 4, 2);
  const std::int64_t peak = simulate_plan(cost, request.plan)->peak_bytes();
  request.problem.memory_bytes = peak - 1;
  const auto e = explain(cost, request);
  ASSERT_TRUE(e.has_value()) << base::to_string(e.error());
  EXPECT_FALSE(e->limits.fits());
  ASSERT_GE(e->relaxations.size(), 2U);
  EXPECT_EQ(e->relaxations.front().memory_bytes, peak);
  EXPECT_EQ(e->relaxations.front().step_time_ps, e->plan.step_ps());
  for (std::size_t i = 1; i < e->relaxations.size(); ++i) {
    EXPECT_LT(e->relaxations[i].memory_bytes, peak) << e->relaxations[i].change;
    EXPECT_GT(e->relaxations[i].step_time_ps, 0);
  }
}

TEST(Explain, TheOrderOfPlansIsJudgedInTheSameDraws) {
  const auto cost = tiny_cost(4, 4);
  const auto e = explain(cost, of_best(cost, tiny_problem()));
  ASSERT_TRUE(e.has_value()) << base::to_string(e.error());
  EXPECT_LT(e->band.low, 1);
  EXPECT_GT(e->band.high, 1);
  ASSERT_TRUE(e->least_sure.has_value());
  EXPECT_GE(e->least_sure->gap_ps, e->gap_ps);
  const double share = e->least_sure->share_faster;
  const Stability drawn = costmodel::within_error(share) ? Stability::kOpen : Stability::kLikely;
  EXPECT_EQ(e->stability, share == 0 ? Stability::kCertain : drawn);
  std::vector<const SimulatedPlan*> known{&e->plan};
  for (const Comparison* c : rivals(*e)) known.push_back(&c->simulated);
  std::ranges::stable_sort(known, {}, [](const SimulatedPlan* a) { return a->step_ps(); });
  const plan::Plan* const pair[] = {&known.front()->plan, &e->least_sure->plan};
  const auto draws =
      costmodel::drawn_steps(cost, pair, costmodel::draw_errors(e->uncertainty.spread));
  ASSERT_TRUE(draws.has_value());
  const std::int64_t first_ps = known.front()->step_ps();
  EXPECT_EQ(costmodel::share_faster({first_ps + e->least_sure->gap_ps, draws->back()},
                                    {first_ps, draws->front()}),
            share);
}

}  // namespace
}  // namespace orrery::search
