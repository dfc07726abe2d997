#include "costmodel/closed_form/closed_form.h"

#include <gtest/gtest.h>

#include "costmodel/closed_form/stage_memory.h"
#include "plan/program/expand.h"
#include "tests/support/operation_time.h"
#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

// Compute 10, communication 4 beside it, both 1.25 times slower while they overlap: 4 * 1.25 + 6 =
// 11.
TEST(Overlap, SlowsDownTheSharedPartOnly) {
  EXPECT_EQ(overlapped_ps(10, 4, 1'250'000, true), 11);
  EXPECT_EQ(overlapped_ps(4, 10, 1'250'000, true), 11);
  EXPECT_EQ(overlapped_ps(10, 4, 1'000'000, true), 10);
  EXPECT_EQ(overlapped_ps(10, 0, 1'250'000, true), 10);
  EXPECT_EQ(overlapped_ps(10, 4, 1'250'000, false), 14);
  EXPECT_EQ(overlapped_ps(3, 3, 1'100'000, true), 4);  // 3.3 rounded up
}

TEST(InFlight, OneForwardOneBackwardHoldsStagesFromHere) {
  EXPECT_EQ(in_flight(plan::Schedule::kGPipe, 0, 4, 8), 8);
  EXPECT_EQ(in_flight(plan::Schedule::k1F1B, 0, 4, 8), 4);
  EXPECT_EQ(in_flight(plan::Schedule::k1F1B, 3, 4, 8), 1);
  EXPECT_EQ(in_flight(plan::Schedule::k1F1B, 0, 4, 2), 2);
}

// persistent 1000; a forward keeps 10 and peaks at 15; backward peaks at 7, the last at 9; 2 in
// flight of 4 micro-batches: forward 2 starts with 10 + X 3 + D 2, backward 1 with 20 + 3 + 2. Rank
// 1 of 3 in 1F1B: F0, F1 B0, F2 B1, F3 B2, B3.
TEST(StageMemory, PeakIsTheHighestOfTheFiveKindsOfPasses) {
  StageMemory s{
      .persistent_bytes = 1000,
      .zero_gradient = {},
      .update = {},
      .chunks = {{.forward = {.before = {.delta_bytes = 10, .peak_bytes = 15}, .behind = {}},
                  .backward = {.delta_bytes = -10, .peak_bytes = 7},
                  .backward_last = {.delta_bytes = -10, .peak_bytes = 9},
                  .weight = {},
                  .weight_last = {},
                  .sent_activation_bytes = 3,
                  .sent_gradient_bytes = 2}}};
  const auto order = plan::pass_order(plan::Schedule::k1F1B, 1, 3, 1, 4);
  EXPECT_EQ(peak_bytes(s, order), 1032);  // backward 1: 20 + 3 + 2 + 7; forward 2 reaches 15 + 15
  s.chunks[0].forward.before.peak_bytes = 30;
  EXPECT_EQ(peak_bytes(s, order), 1045);
  s.chunks[0].backward_last.peak_bytes = 100;
  EXPECT_EQ(peak_bytes(s, order), 1115);
  s.update.before.peak_bytes = 200;
  EXPECT_EQ(peak_bytes(s, order), 1205);
  s.zero_gradient.peak_bytes = 300;
  EXPECT_EQ(peak_bytes(s, order), 1300);
}

// A forward that leaves 10 until its copy has begun and ended, a backward that brings them back:
// two micro-batches after each other hold what was copied last beside what comes back.
TEST(StageMemory, WhatIsCopiedToTheHostStaysUntilTheNextCopyBegins) {
  StageMemory s{.persistent_bytes = 0,
                .zero_gradient = {},
                .update = {},
                .chunks = {{.forward = {.before = {.delta_bytes = 10, .peak_bytes = 11},
                                        .behind = {.delta_bytes = -10, .peak_bytes = 0},
                                        .copied_bytes = 10},
                            .backward = {.delta_bytes = 0, .peak_bytes = 12},
                            .backward_last = {.delta_bytes = 0, .peak_bytes = 12},
                            .weight = {},
                            .weight_last = {}}}};
  const auto order = plan::pass_order(plan::Schedule::k1F1B, 0, 1, 1, 2);
  EXPECT_EQ(peak_bytes(s, order), 22);  // 10 copied and 12
  s.chunks[0].forward.before.peak_bytes = 15;
  EXPECT_EQ(peak_bytes(s, order), 25);  // the second forward, beside the first one's copy
}

// A stash of 10 of which 4 wait for the weights. Rank 1 of 2 in ZB-H1, m = 4: F0 B0 | F1 B1 W0 | F2
// B2 W1 | F3 B3 W2 | W3. Before each F but the first: 4.
TEST(StageMemory, WhatWeightGradientsNeedStaysUntilTheyRun) {
  const StageMemory s{
      .persistent_bytes = 0,
      .zero_gradient = {},
      .update = {},
      .chunks = {{.forward = {.before = {.delta_bytes = 10, .peak_bytes = 12}, .behind = {}},
                  .backward = {.delta_bytes = -6, .peak_bytes = 1},
                  .backward_last = {.delta_bytes = -6, .peak_bytes = 1},
                  .weight = {.delta_bytes = -4, .peak_bytes = 0},
                  .weight_last = {.delta_bytes = -4, .peak_bytes = 0},
                  .sent_activation_bytes = 0,
                  .sent_gradient_bytes = 0}}};
  EXPECT_EQ(peak_bytes(s, plan::pass_order(plan::Schedule::kZeroBubbleH1, 1, 2, 1, 4)), 16);
}

class PlanCostTest : public testing::Test {
 protected:
  static CostModel cost(bool overlaps) {
    model::Profile p;
    p.name = "test";
    p.device = "T100";
    p.overlaps = overlaps;
    auto made = CostModel::make(*model::find_model("llama-tiny"), machines::cluster(4), p,
                                {model::Precision::kBFloat16, 64});
    EXPECT_TRUE(made.has_value()) << (made ? "" : base::to_string(made.error()));
    return *std::move(made);
  }
  static plan::Plan uniform(const CostModel& c, int tp, int pp, int dp, int zero,
                            std::int64_t batch) {
    plan::UniformOptions o;
    o.tp = tp;
    o.pp = pp;
    o.dp = dp;
    o.zero = zero;
    o.micro_batch = 1;
    o.global_batch = batch;
    o.sequence = 64;
    auto p = plan::uniform_plan(c.model(), "machine", 1, o);
    EXPECT_TRUE(p.has_value()) << (p ? "" : base::to_string(p.error()));
    return *std::move(p);
  }
};

TEST_F(PlanCostTest, OneStageWithoutOverlapIsTheSumOfItsOperations) {
  const auto c = cost(false);
  for (const int zero : {0, 1, 2, 3}) {
    const auto p = uniform(c, 2, 1, 2, zero, 8);
    const auto program = plan::lower(p, c.model());
    ASSERT_TRUE(program.has_value());
    std::int64_t sum = 0;
    plan::for_each_op(*program, program->classes[0], [&](const plan::OpInstance& o) {
      sum += tests::op_ps(c, *program, *o.op, 0, 4);
    });
    const auto priced = plan_cost(c, p);
    ASSERT_TRUE(priced.has_value());
    EXPECT_EQ(priced->step_ps, sum) << "zero " << zero;
  }
}

TEST_F(PlanCostTest, OverlapNeverCostsMoreThanNone) {
  const auto apart = plan_cost(cost(false), uniform(cost(false), 1, 1, 4, 3, 8));
  const auto beside = plan_cost(cost(true), uniform(cost(true), 1, 1, 4, 3, 8));
  ASSERT_TRUE(apart && beside);
  EXPECT_LT(beside->step_ps, apart->step_ps);
}

TEST_F(PlanCostTest, RefusesAPlanThatIsLargerThanTheCluster) {
  const auto c = cost(true);
  const auto priced = plan_cost(c, uniform(c, 2, 1, 4, 0, 8));
  ASSERT_FALSE(priced.has_value());
  EXPECT_EQ(priced.error().front().code, base::ErrorCode::kInconsistent);
}

}  // namespace
}  // namespace orrery::costmodel
