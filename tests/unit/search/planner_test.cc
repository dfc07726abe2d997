#include "search/loop/planner.h"
#include "base/json.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "search/loop/moved_states.h"
#include "tests/unit/search/checked_answer.h"
#include "tests/unit/search/tiny_fixture.h"

namespace orrery::search {
namespace {

PlanRequest tiny_request() {
  PlanRequest request;
  request.cluster = "tiny";
  request.memory_bytes = 1 << 30;
  request.global_batch = 8;
  return request;
}

TEST(FindPlan, CertificateOfAnOptimalPlanHasNoGap) {
  const costmodel::CostModel cost = tiny_cost(4, 4);
  const auto answer = find_plan(cost, tiny_request());
  ASSERT_TRUE(answer.has_value()) << base::to_string(answer.error());
  EXPECT_EQ(answer->status, Status::kOptimal);
  EXPECT_EQ(answer->certificate.cost_ps, answer->certificate.bound_ps);
  EXPECT_EQ(answer->certificate.gap, 0.0);
  EXPECT_EQ(answer->certificate.cost_model_fingerprint, cost.fingerprint());
  // The certified cost is that of one of the candidates, recomputable from its plan.
  const auto best = std::ranges::min_element(answer->candidates, {}, &Candidate::closed_form_ps);
  const auto priced = costmodel::plan_cost(cost, best->plan);
  ASSERT_TRUE(priced.has_value());
  EXPECT_EQ(priced->step_ps, answer->certificate.cost_ps);
  EXPECT_EQ(checkers_fault(cost, *answer), "");
}

TEST(FindPlan, CandidatesAreDistinctAndAtMostTop) {
  PlanRequest request = tiny_request();
  request.top = 3;
  const auto answer = find_plan(tiny_cost(4, 4), request);
  ASSERT_TRUE(answer.has_value());
  ASSERT_EQ(answer->candidates.size(), 3U);
  EXPECT_NE(plan::to_json(answer->candidates[0].plan), plan::to_json(answer->candidates[1].plan));
  EXPECT_NE(plan::to_json(answer->candidates[1].plan), plan::to_json(answer->candidates[2].plan));
}

TEST(FindPlan, ALongStepIsSimulatedAsFarAsItRepeats) {
  PlanRequest request = tiny_request();
  request.global_batch = 400'000;
  request.space.fix_micro_batches = 200'000;
  request.space.fix_pp = 2;
  const auto answer = find_plan(tiny_cost(4, 4), request);
  ASSERT_TRUE(answer.has_value()) << base::to_string(answer.error());
  const Candidate& best = answer->candidates.front();
  EXPECT_EQ(best.report.simulated_micro_batches, 16 * 2);
  EXPECT_NEAR(real(best.report.step_time_ps), real(best.closed_form_ps),
              0.01 * real(best.closed_form_ps));
  EXPECT_EQ(
      find_plan(tiny_cost(4, 4), tiny_request())->candidates.front().report.simulated_micro_batches,
      0);
}

TEST(FindPlan, NothingFitsIsAnAnswerWithShortfallAndRelaxations) {
  PlanRequest request = tiny_request();
  request.space.recompute_full = false;
  request.memory_bytes = 2'000'000;
  const auto answer = find_plan(tiny_cost(4, 4), request);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, Status::kInfeasible);
  EXPECT_GT(answer->shortfall_bytes, 0);
  ASSERT_FALSE(answer->relaxations.empty());
  // With the memory that a relaxation names, a plan is found, in the time it predicts.
  const auto memory = std::ranges::find_if(
      answer->relaxations, [](const Relaxation& r) { return r.change.starts_with("memory"); });
  ASSERT_NE(memory, answer->relaxations.end());
  EXPECT_EQ(memory->memory_bytes, request.memory_bytes + answer->shortfall_bytes);
  request.memory_bytes = memory->memory_bytes;
  request.top = 1;
  const auto relaxed = find_plan(tiny_cost(4, 4), request);
  ASSERT_TRUE(relaxed.has_value());
  ASSERT_EQ(relaxed->status, Status::kOptimal);
  EXPECT_EQ(checkers_fault(tiny_cost(4, 4), *relaxed), "");
  EXPECT_EQ(relaxed->candidates.front().report.step_time_ps, memory->step_time_ps);
}

/// Llama-2-7B on a DGX A100, 16 sequences of 1,024 tokens.
costmodel::CostModel seven_billion() {
  return costmodel::CostModel::make(*model::find_model("llama-2-7b"),
                                    *topologies::catalog_topology("dgx-a100"), std::nullopt,
                                    {.precision = model::Precision::kBFloat16, .sequence = 1024})
      .value();
}

// Plans whose states are all on the device and all on the host have proofs of their own; what is
// between them has none.
TEST(FindPlan, StatesOnTheHostHelpWhereMemoryIsShort) {
  const costmodel::CostModel cost = seven_billion();
  PlanRequest request = tiny_request();
  request.cluster = "dgx-a100";
  request.global_batch = 16;
  request.max_states = 100'000;
  for (const std::int64_t gib : {10, 15, 70}) {
    request.memory_bytes = gib << 30;
    request.relax = false;
    request.space.states_on_host = false;
    const PlanAnswer kept = find_plan(cost, request).value();
    request.space.states_on_host = true;
    const PlanAnswer both = find_plan(cost, request).value();
    ASSERT_FALSE(both.candidates.empty()) << gib;
    EXPECT_EQ(both.certificate.proofs.size(), 2U);
    EXPECT_EQ(checkers_fault(cost, both), "") << gib;
    EXPECT_EQ(kept.candidates.empty(), gib == 10);
    if (kept.candidates.empty()) continue;
    EXPECT_LE(both.candidates.front().simulated_ps(), kept.candidates.front().simulated_ps());
    EXPECT_TRUE(gib != 70 || !plan::copies_to_host(both.candidates.front().plan));
  }
  request.space.states_on_device = false;
  request.memory_bytes = std::int64_t{70} << 30;
  EXPECT_TRUE(plan::copies_to_host(find_plan(cost, request)->candidates.front().plan));
}

// The last layers of a rank first, then embedding and head; no more than it takes.
TEST(MovedStates, AreOfAsFewLayersAsFit) {
  const costmodel::CostModel cost = seven_billion();
  costmodel::LayerCosts costs(cost);
  const plan::Plan kept =
      plan::uniform_plan(
          cost.model(), "dgx-a100", 1,
          {.pp = 2, .dp = 4, .zero = 1, .micro_batch = 1, .global_batch = 16, .sequence = 1024})
          .value();
  const auto peaks = [&](const plan::Plan& p) {
    return costmodel::plan_cost(costs, p)->stage_peak_bytes;
  };
  const std::vector<std::int64_t> before = peaks(kept);
  const std::int64_t limit = std::ranges::max(before) - (std::int64_t{2} << 30);
  const auto moved = with_states_moved(costs, kept, limit);
  ASSERT_TRUE(moved.has_value());
  EXPECT_LE(std::ranges::max(peaks(*moved)), limit);
  for (std::size_t s = 0; s < moved->stages.size(); ++s) {
    const std::vector<plan::LayerRun>& runs = moved->stages[s].runs;
    if (before[s] <= limit) {
      EXPECT_EQ(runs, kept.stages[s].runs);
      continue;
    }
    ASSERT_EQ(runs.size(), 2U);
    EXPECT_EQ(runs[0].strategy.states, plan::States::kDevice);
    EXPECT_EQ(runs[1].strategy.states, plan::States::kHost);
    plan::Plan one_less = *moved;
    ++one_less.stages[s].runs[0].count;
    --one_less.stages[s].runs[1].count;
    EXPECT_GT(peaks(canonical(one_less))[s], limit);
  }
  EXPECT_EQ(with_states_moved(costs, kept, std::int64_t{1} << 30), std::nullopt);
  EXPECT_EQ(with_states_moved(costs, kept, std::ranges::max(before)), kept);
}

TEST(FindPlan, AnEffortLimitIsStatusBudgetWithItsGap) {
  PlanRequest request = tiny_request();
  request.memory_bytes = 30'000'000;
  request.max_states = 1;
  const auto answer = find_plan(tiny_cost(4, 6), request);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, Status::kBudget);
  EXPECT_EQ(checkers_fault(tiny_cost(4, 6), *answer), "");
  if (!answer->candidates.empty()) {
    EXPECT_GT(answer->certificate.gap, 0.0);
    EXPECT_LT(answer->certificate.bound_ps, answer->certificate.cost_ps);
  }
}

TEST(FindPlan, ProgressNeverGoesBackAndBoundsTheIncumbent) {
  PlanRequest request = tiny_request();
  std::uint64_t last = 0, calls = 0;
  request.on_progress = [&](const Progress& p) {
    EXPECT_GT(p.done, last);
    EXPECT_LE(p.done, p.total);
    EXPECT_TRUE(p.incumbent_ps == 0 || p.bound_ps <= p.incumbent_ps);
    last = p.done;
    ++calls;
  };
  ASSERT_TRUE(find_plan(tiny_cost(2, 4), request).has_value());
  EXPECT_GT(calls, 0U);
}

TEST(FindPlan, VirtualStagesMayBeUneven) {
  PlanRequest request = tiny_request();
  request.global_batch = 16;
  request.space.fix_pp = 16;
  request.space.fix_virtual_stages = 4;
  request.space.one_f_one_b = request.space.gpipe = request.space.zero_bubble = false;
  const auto answer = find_plan(tiny_cost(16, 126), request);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, Status::kOptimal);
  ASSERT_FALSE(answer->candidates.empty());
  const plan::Plan& plan = answer->candidates.front().plan;
  EXPECT_EQ(plan.schedule, plan::Schedule::kInterleaved);
  EXPECT_EQ(plan.virtual_stages, 4);
  EXPECT_EQ(plan.pipeline_degree(), 16);
  EXPECT_TRUE(
      std::ranges::any_of(plan.stages, [](const plan::Stage& s) { return s.layers() == 1; }));
}

// A pipeline of three stages on four devices: with one micro-batch of one sequence a stage has no
// use for two.
TEST(FindPlan, ThreeStagesMayLeaveADeviceIdle) {
  PlanRequest request = tiny_request();
  request.space.fix_pp = 3;
  const auto answer = find_plan(tiny_cost(4, 6), request);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, Status::kOptimal);
  ASSERT_FALSE(answer->candidates.empty());
  EXPECT_EQ(answer->candidates.front().plan.world_size(), 3);
  request.space.idle = false;
  EXPECT_FALSE(find_plan(tiny_cost(4, 6), request).has_value());
}

TEST(FindPlan, SevenDevicesThatDivideNothingAreNoSlowerThanSix) {
  PlanRequest request = tiny_request();
  request.global_batch = 8;
  const auto four = find_plan(tiny_cost(4, 6), request), six = find_plan(tiny_cost(6, 6), request),
             seven = find_plan(tiny_cost(7, 6), request);
  ASSERT_TRUE(four.has_value() && six.has_value() && seven.has_value());
  for (const PlanAnswer* a : {&*four, &*six, &*seven}) ASSERT_EQ(a->status, Status::kOptimal);
  EXPECT_LE(seven->certificate.cost_ps, six->certificate.cost_ps);
  EXPECT_LE(six->certificate.cost_ps, four->certificate.cost_ps);
  request.space.idle = false;
  const auto all = find_plan(tiny_cost(7, 6), request);
  ASSERT_TRUE(all.has_value());
  EXPECT_TRUE(all->candidates.empty());  // seven divide neither six layers nor a batch of eight
}

TEST(FindPlan, WrongRequestsReportEveryFault) {
  PlanRequest request = tiny_request();
  request.global_batch = 8;
  request.top = 0;
  request.space.fix_pp = 5;
  request.space.fix_micro_batches = 5;
  const auto answer = find_plan(tiny_cost(4, 4), request);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().size(), 3U) << base::to_string(answer.error());
}

// 10,485,760 tokens: more picoseconds than 2^63 on one device, hours on all.
TEST(Planner, StepsLongerThanSimulatedTimeAreNoPlansButAnError) {
  const auto model = model::find_model("llama-4-scout-17b-16e");
  const auto answer_on = [&](int hosts) {
    const auto topology =
        topologies::catalog_topology("dgx-h100", static_cast<std::uint32_t>(hosts));
    const auto cost = costmodel::CostModel::make(*model, *topology, std::nullopt,
                                                 {.precision = model::Precision::kBFloat16,
                                                  .sequence = model->max_positions,
                                                  .library = {}});
    PlanRequest request;
    request.hosts = hosts;
    request.global_batch = 1693;
    request.relax = false;
    return find_plan(*cost, request);
  };
  const auto one = answer_on(1);
  ASSERT_FALSE(one.has_value());
  EXPECT_NE(base::to_string(one.error()).find("days and more on these devices"), std::string::npos);
  const auto many = answer_on(2048);
  ASSERT_TRUE(many.has_value());
  EXPECT_EQ(many->status, Status::kInfeasible);
}

}  // namespace
}  // namespace orrery::search
