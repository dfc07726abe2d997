#include "costmodel/closed_form.h"

#include <gtest/gtest.h>

#include "costmodel/stage_memory.h"
#include "plan/expand.h"
#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

// Compute 10, communication 4 beside it, both 1.25 times slower while they overlap: 4 * 1.25 + 6 = 11.
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

// persistent 1000; a forward keeps 10 and peaks at 15; backward peaks at 7, the last at 9; 2 in flight of 4 micro-batches: forward 2 starts with
// 10 + X 3 + D 2, backward 1 with 20 + 3 + 2.
TEST(StageMemory, PeakIsTheHighestOfTheFiveKindsOfPasses) {
  StageMemory s{.persistent_bytes = 1000,
                .in_flight = 2,
                .micro_batches = 4,
                .zero_gradient = {},
                .forward = {.delta_bytes = 10, .peak_bytes = 15},
                .backward = {.delta_bytes = -10, .peak_bytes = 7},
                .backward_last = {.delta_bytes = -10, .peak_bytes = 9},
                .update = {},
                .held_activation_bytes = 3,
                .held_gradient_bytes = 2};
  EXPECT_EQ(peak_bytes(s), 1032);  // backward 1: 20 + 3 + 2 + 7; forward 2 reaches 15 + 15
  s.forward.peak_bytes = 30;
  EXPECT_EQ(peak_bytes(s), 1045);
  s.backward_last.peak_bytes = 100;
  EXPECT_EQ(peak_bytes(s), 1115);
  s.update.peak_bytes = 200;
  EXPECT_EQ(peak_bytes(s), 1205);
  s.zero_gradient.peak_bytes = 300;
  EXPECT_EQ(peak_bytes(s), 1300);
}

class PlanCostTest : public testing::Test {
 protected:
  static CostModel cost(bool overlaps) {
    model::Profile p;
    p.name = "test";
    p.device = "T100";
    p.overlaps = overlaps;
    auto made = CostModel::make(*model::find_model("llama-tiny"), machines::cluster(4), p, {model::Precision::kBFloat16, 64});
    EXPECT_TRUE(made.has_value()) << (made ? "" : base::to_string(made.error()));
    return *std::move(made);
  }
  static plan::Plan uniform(const CostModel& c, int tp, int pp, int dp, int zero, std::int64_t batch) {
    plan::UniformOptions o;
    o.tp = tp, o.pp = pp, o.dp = dp, o.zero = zero, o.micro_batch = 1, o.global_batch = batch, o.sequence = 64;
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
    plan::for_each_op(*program, program->classes[0], [&](const plan::OpInstance& o) { sum += c.op_ps(*program, *o.op, 0, 4); });
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
