#include "cli/measured/validate_plans.h"

#include <gtest/gtest.h>

#include <cmath>

#include "plan/program/plan.h"

namespace orrery::cli {
namespace {

TEST(ValidationPlans, TwoRanksGiveTheEightOfTheFixedSet) {
  const auto model = model::find_model("gpt2-tiny").value();
  const auto plans =
      validation_plans(model, "local", 2, 16, 128, model::Precision::kFloat32, 8).value();
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
  const auto plans =
      validation_plans(model, "local", 8, 16, 128, model::Precision::kFloat32, 8).value();
  for (const NamedPlan& p : plans) EXPECT_NE(p.name, "tp");  // 4 heads
}

TEST(ValidationPlans, NoneAtAllIsAnError) {
  const auto model = model::find_model("gpt2-tiny").value();
  EXPECT_FALSE(validation_plans(model, "local", 7, 5, 128, model::Precision::kFloat32, 8));
}

ValidationRow row(double predicted, std::vector<double> rounds) {
  return {"p", predicted, std::move(rounds), {110, 99}, {100, 100}};
}

TEST(ValidationRow, MeasuredIsTheMedianOfTheRoundsAndNoiseThatOfAMedian) {
  const ValidationRow r = row(3, {2.2, 2.0, 1.9, 5.0, 2.0});
  EXPECT_DOUBLE_EQ(r.measured_s(), 2.0);
  EXPECT_DOUBLE_EQ(r.spread(), (5.0 - 1.9) / 4.0);
  EXPECT_NEAR(r.noise(), 1.2533 / std::sqrt(5.0) * r.spread(), 1e-4);
  // the tenths outside do not count
  EXPECT_DOUBLE_EQ(row(3, {1, 9, 2, 2, 2, 2, 2, 2, 2, 2, 2}).spread(), 0);
  EXPECT_DOUBLE_EQ(r.step_error(), 0.5);
  // a machine that is faster now than it was calibrated
  EXPECT_NEAR(r.step_error(0.8), 0.2, 1e-12);
  EXPECT_NEAR(r.memory_errors().first, -0.01, 1e-12);
  EXPECT_NEAR(r.memory_errors().second, 0.1, 1e-12);
}

TEST(ValidationSummary, OfThreePlansByHand) {
  // The predicted best (2) really takes 4, the measured best takes 2: regret 1.
  const std::vector<ValidationRow> rows{row(2, {4}), row(3, {2}), row(4, {5})};
  const auto s = summarize(rows);
  EXPECT_DOUBLE_EQ(s.step.mean, (0.5 + 0.5 + 0.2) / 3);
  EXPECT_DOUBLE_EQ(s.step.largest, 0.5);
  EXPECT_DOUBLE_EQ(step_errors(rows, 2.0).largest, 2.0);
  EXPECT_EQ(s.chosen, 0U);
  EXPECT_EQ(s.fastest, 1U);
  EXPECT_EQ(s.fastest_within_noise, std::vector<std::size_t>{1});
  EXPECT_DOUBLE_EQ(s.regret, 1.0);
  EXPECT_NEAR(s.max_memory_error, 0.1, 1e-12);
  EXPECT_NEAR(s.max_memory_shortfall, 0.01, 1e-12);
  EXPECT_DOUBLE_EQ(s.rank_correlation, 0.5);  // ranks 0 1 2 against 1 0 2
}

TEST(ValidationSummary, PlansCloserThanTheirRoundsAreFastestWithinNoiseAndRegretCountsAllTheSame) {
  // Medians 100, 102, 104; noise 0.72, 1.95 and 0.72: 2 is within hypot(0.72, 1.95), 4 is not
  // within hypot(0.72, 0.72).
  const auto s = summarize(
      {row(102, {99, 100, 101}), row(101, {99.3, 102, 104.7}), row(104, {103, 104, 105})});
  EXPECT_EQ(s.fastest_within_noise, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(s.chosen, 1U);
  EXPECT_NEAR(s.regret, 0.02, 1e-12);
}

}  // namespace
}  // namespace orrery::cli
