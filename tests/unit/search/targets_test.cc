#include "search/loop/targets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "search/space/space_text.h"
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

std::vector<plan::LayerStrategy> strategies_of(const plan::Plan& plan) {
  std::vector<plan::LayerStrategy> all{plan.vocabulary};
  for (const plan::Stage& stage : plan.stages) {
    for (const plan::LayerRun& run : stage.runs) all.push_back(run.strategy);
  }
  return all;
}

class EveryTarget : public testing::TestWithParam<const char*> {};

TEST_P(EveryTarget, GetsOnlyPlansThatItCanRun) {
  const Target target = *find_target(GetParam());
  const auto answer = find_plan_for(target, tiny_cost(4, 6), tiny_request());
  ASSERT_TRUE(answer.has_value());
  ASSERT_FALSE(answer->candidates.empty());
  for (const Candidate& c : answer->candidates) {
    const std::vector<plan::LayerStrategy> all = strategies_of(c.plan);
    for (const plan::LayerStrategy& s : all) {
      const bool zero[] = {target.space.data, target.space.zero1, target.space.zero2,
                           target.space.zero3};
      EXPECT_TRUE(s.dp == 1 || zero[s.zero]) << plan::to_string(s);
      EXPECT_EQ(s.tp, all.front().tp);
      EXPECT_TRUE(s.tp == 1 || target.space.tensor);
      EXPECT_EQ(s.zero, all.front().zero);
      EXPECT_TRUE(c.plan.pipeline_degree() == 1 || s.zero <= target.pipeline_zero);
    }
    EXPECT_TRUE(c.plan.schedule != plan::Schedule::kInterleaved || target.space.interleaved);
    EXPECT_TRUE(c.plan.schedule != plan::Schedule::kZeroBubbleH1 || target.space.zero_bubble);
    for (const plan::Stage& stage : c.plan.stages) {
      EXPECT_EQ(stage.runs.size(), 1U);
      EXPECT_TRUE(!target.space.even_stages ||
                  stage.layers() * static_cast<int>(c.plan.stages.size()) == 6);
    }
    EXPECT_TRUE(c.plan.pipeline_degree() == 1 || target.space.pipeline);
  }
  EXPECT_LE(answer->certificate.bound_ps, answer->certificate.cost_ps);
}
INSTANTIATE_TEST_SUITE_P(Targets, EveryTarget,
                         testing::Values("megatron", "torchtitan", "deepspeed", "fsdp"));

TEST(Targets, MegatronInterleavesEqualStages) {
  PlanRequest request = tiny_request();
  request.space = *fix_values("pp=2,virtual_stages=3", request.space);
  const auto answer = find_plan_for(*find_target("megatron"), tiny_cost(4, 6), request);
  ASSERT_TRUE(answer.has_value());
  ASSERT_FALSE(answer->candidates.empty());
  EXPECT_EQ(answer->candidates.front().plan.virtual_stages, 3);
  for (const plan::Stage& stage : answer->candidates.front().plan.stages)
    EXPECT_EQ(stage.layers(), 1);
  const auto other = find_plan_for(*find_target("deepspeed"), tiny_cost(4, 6), request);
  EXPECT_FALSE(other.has_value());  // no schedule is left
}

TEST(Targets, AreNeverFasterThanTheWholeSpace) {
  const costmodel::CostModel cost = tiny_cost(4, 6);
  PlanRequest request = tiny_request();
  request.space.zero1 = request.space.recompute_selective = true;
  const auto whole = find_plan(cost, request);
  ASSERT_TRUE(whole.has_value());
  for (const Target& target : targets()) {
    const auto answer = find_plan_for(target, cost, request);
    ASSERT_TRUE(answer.has_value());
    EXPECT_GE(answer->certificate.cost_ps, whole->certificate.bound_ps) << target.name;
    EXPECT_EQ(checkers_fault(cost, *answer), "") << target.name;
    EXPECT_LE(answer->certificate.multiplier_bound_ps, answer->certificate.bound_ps) << target.name;
  }
}

// Embedding and head make uneven stages faster, and four stages of six layers are never even.
TEST(Targets, MegatronShiftsLayersFromStageToStage) {
  PlanRequest request = tiny_request();
  request.space = *fix_values("pp=4,schedule=1f1b", request.space);
  const costmodel::CostModel cost = tiny_cost(4, 6);
  const auto answer = find_plan_for(*find_target("megatron"), cost, request);
  ASSERT_TRUE(answer.has_value());
  ASSERT_FALSE(answer->candidates.empty());
  EXPECT_EQ(checkers_fault(cost, *answer), "");
  const auto whole = find_plan(cost, request);
  ASSERT_TRUE(whole.has_value());
  EXPECT_GE(answer->certificate.cost_ps, whole->certificate.bound_ps);
}

TEST(Targets, FsdpHasNoPipelineThatWouldSplitLayersUnevenly) {
  PlanRequest request = tiny_request();
  request.space = *fix_values("pp=4", Space{});
  const auto impossible = find_plan_for(*find_target("fsdp"), tiny_cost(4, 6), request);
  ASSERT_TRUE(impossible.has_value());
  EXPECT_TRUE(impossible->candidates.empty());
}

costmodel::CostModel mixture_cost(int devices) {
  model::ModelSpec m = tiny_model(4);
  m.experts = 4;
  m.experts_per_token = 2;
  auto cost = costmodel::CostModel::make(
      m, tiny_cluster(devices), std::nullopt,
      {.precision = model::Precision::kBFloat16, .sequence = m.max_positions, .library = {}});
  EXPECT_TRUE(cost.has_value());
  return *std::move(cost);
}

TEST(Targets, MegatronSplitsTheExpertsOfAllLayersAlike) {
  const costmodel::CostModel cost = mixture_cost(4);
  PlanRequest request = tiny_request();
  const auto answer = find_plan_for(*find_target("megatron"), cost, request);
  ASSERT_TRUE(answer.has_value());
  ASSERT_FALSE(answer->candidates.empty());
  EXPECT_EQ(checkers_fault(cost, *answer), "");
  request.space = *fix_values("ep=1", request.space);
  const auto whole = find_plan_for(*find_target("megatron"), cost, request);
  ASSERT_TRUE(whole.has_value());
  EXPECT_LE(answer->certificate.cost_ps, whole->certificate.cost_ps);
  request.space = *fix_values("ep=4,tp=1", Space{});
  const auto split = find_plan_for(*find_target("megatron"), cost, request);
  ASSERT_TRUE(split.has_value());
  ASSERT_FALSE(split->candidates.empty());
  EXPECT_EQ(checkers_fault(cost, *split), "");
  for (const Candidate& c : split->candidates) {
    for (const plan::Stage& stage : c.plan.stages)
      for (const plan::LayerRun& run : stage.runs) EXPECT_EQ(run.strategy.ep, 4);
    EXPECT_EQ(c.plan.vocabulary.ep, 1);
  }
  const auto none = find_plan_for(*find_target("torchtitan"), cost, request);
  ASSERT_TRUE(none.has_value());
  EXPECT_TRUE(none->candidates.empty());
}

// Strategies are searched one after another, and later ones only below what is known.
TEST(Targets, KnownPlansCutNoFasterOneOff) {
  for (const char* name : {"megatron", "torchtitan", "deepspeed", "fsdp"}) {
    const Target target = *find_target(name);
    const auto step_of = [&](const PlanRequest& request) {
      const auto answer = find_plan_for(target, tiny_cost(8, 8), request);
      return answer && !answer->candidates.empty() ? answer->candidates.front().report.step_time_ps
                                                   : std::numeric_limits<std::int64_t>::max();
    };
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    for (const int tp : {1, 2, 4, 8}) {
      for (bool Space::*zero : {&Space::data, &Space::zero1, &Space::zero2, &Space::zero3}) {
        PlanRequest request = tiny_request();
        request.space.data = request.space.zero1 = request.space.zero2 = request.space.zero3 =
            false;
        request.space.*zero = true;
        request.space.fix_tp = tp;
        best = std::min(best, step_of(request));
      }
    }
    EXPECT_EQ(step_of(tiny_request()), best) << name;
  }
}

TEST(Targets, HoldFixedValuesToo) {
  PlanRequest request = tiny_request();
  request.space = *fix_values("tp=2,recompute=full", request.space);
  const auto answer = find_plan_for(*find_target("megatron"), tiny_cost(4, 6), request);
  ASSERT_TRUE(answer.has_value());
  ASSERT_FALSE(answer->candidates.empty());
  for (const plan::Stage& stage : answer->candidates.front().plan.stages) {
    EXPECT_EQ(stage.runs.front().strategy.tp, 2);
    EXPECT_EQ(stage.runs.front().strategy.recompute, plan::Recompute::kFull);
  }
}

TEST(Targets, NothingThatFitsIsAnAnswerWithItsShortfall) {
  PlanRequest request = tiny_request();
  request.memory_bytes = 1'000'000;
  const auto answer = find_plan_for(*find_target("fsdp"), tiny_cost(4, 4), request);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, Status::kInfeasible);
  EXPECT_GT(answer->shortfall_bytes, 0);
  EXPECT_FALSE(answer->relaxations.empty());
  request.space = *fix_values("tp=2", request.space);
  const auto impossible = find_plan_for(*find_target("fsdp"), tiny_cost(4, 4), request);
  ASSERT_TRUE(impossible.has_value());
  EXPECT_EQ(impossible->shortfall_bytes, 0);
  ASSERT_FALSE(impossible->pruned.empty());
}

TEST(Targets, KeepNoStatesOnTheHost) {
  PlanRequest request = tiny_request();
  request.space.states_on_host = true;
  for (const Target& t : targets()) {
    request.space.states_on_device = true;
    const auto answer = find_plan_for(t, tiny_cost(4, 4), request);
    ASSERT_FALSE(answer->candidates.empty()) << t.name;
    EXPECT_FALSE(plan::copies_to_host(answer->candidates.front().plan)) << t.name;
    request.space.states_on_device = false;
    const auto none = find_plan_for(t, tiny_cost(4, 4), request);
    EXPECT_TRUE(none->candidates.empty()) << t.name;
    ASSERT_EQ(none->pruned.size(), 1U) << t.name;
    EXPECT_EQ(none->pruned[0].text, "the space has no strategy that this target can run");
  }
}

TEST(Targets, UnknownNameIsAnsweredWithANearOne) {
  const auto target = find_target("megatrom");
  ASSERT_FALSE(target.has_value());
  EXPECT_EQ(target.error().front().hint, "did you mean 'megatron'?");
  for (const Target& t : targets())
    EXPECT_FALSE(t.source.empty() || t.restrictions.empty()) << t.name;
}

}  // namespace
}  // namespace orrery::search
