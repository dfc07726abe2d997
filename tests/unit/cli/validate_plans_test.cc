#include "cli/validate_plans.h"

#include <gtest/gtest.h>

#include "plan/plan.h"

namespace orrery::cli {
namespace {

TEST(ValidationPlans, TwoRanksGiveTheEightOfTheFixedSet) {
  const auto model = model::find_model("gpt2-tiny").value();
  const auto plans = validation_plans(model, "local", 2, 16, 128, model::Precision::kFloat32, 8).value();
  ASSERT_EQ(plans.size(), 8U);
  EXPECT_EQ(plans.front().name, "dp");
  EXPECT_EQ(plans[6].name, "pp, 8 micro-batches");
  EXPECT_EQ(plans[6].plan.micro_batches, 8);
  EXPECT_TRUE(plans[4].plan.stages[0].runs[0].strategy.sequence_parallel);
  EXPECT_EQ(plans[7].plan.stages[0].runs[0].strategy.recompute, plan::Recompute::kFull);
  for (const NamedPlan& p : plans) {
    EXPECT_EQ(p.plan.world_size(), 2) << p.name;
    EXPECT_TRUE(plan::validate(p.plan, model).empty()) << p.name;
  }
}

TEST(ValidationPlans, WhatDoesNotDivideIsLeftOut) {
  const auto model = model::find_model("gpt2-tiny").value();
  const auto plans = validation_plans(model, "local", 8, 16, 128, model::Precision::kFloat32, 8).value();
  for (const NamedPlan& p : plans) EXPECT_NE(p.name, "tp");   // 4 heads
}

TEST(ValidationPlans, NoneAtAllIsAnError) {
  const auto model = model::find_model("gpt2-tiny").value();
  EXPECT_FALSE(validation_plans(model, "local", 7, 5, 128, model::Precision::kFloat32, 8));
}

ValidationRow row(double predicted, double measured) { return {"p", predicted, measured, {110}, {100}}; }

TEST(ValidationSummary, OfThreePlansByHand) {
  // The predicted best (2) really takes 4, the measured best takes 2: regret 1.
  const auto s = summarize({row(2, 4), row(3, 2), row(4, 5)});
  EXPECT_DOUBLE_EQ(s.mean_abs_step_error, (0.5 + 0.5 + 0.2) / 3);
  EXPECT_DOUBLE_EQ(s.max_abs_step_error, 0.5);
  EXPECT_DOUBLE_EQ(s.regret, 1.0);
  EXPECT_NEAR(s.max_memory_error, 0.1, 1e-12);
  EXPECT_DOUBLE_EQ(s.rank_correlation, 0.5);   // ranks 0 1 2 against 1 0 2
}

}  // namespace
}  // namespace orrery::cli
