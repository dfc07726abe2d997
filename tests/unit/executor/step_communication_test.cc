#include "executor/measure/step_communication.h"

#include <gtest/gtest.h>

#include <vector>

namespace orrery::executor {
namespace {

TEST(FitStepCommunication, FindsFactorAndWaiting) {
  std::vector<ComposedStep> steps;
  for (const double alone : {2e-5, 1e-4, 1e-3})
    steps.push_back(
        {.seconds = 20 * (1.5 * alone + 4e-5), .medians = 20 * alone, .operations = 20});
  const model::StepCommunication c = fit_step_communication(steps);
  EXPECT_NEAR(c.factor, 1.5, 1e-9);
  EXPECT_NEAR(c.issue_seconds, 4e-5, 1e-14);
  EXPECT_EQ(c.fabric_share, 1);
}

TEST(FitStepCommunication, IsNeverFasterThanAlone) {
  // By hand: of the errors 2 e / 3 - 1 / 3 and 3 e / 5 + 1 / 5 (e in s)
  // e = (2/3 · 1/3 - 3/5 · 1/5) / (4/9 + 9/25) is the least.
  const std::vector<ComposedStep> steps{{.seconds = 3, .medians = 2, .operations = 2},
                                        {.seconds = 5, .medians = 6, .operations = 3}};
  const model::StepCommunication c = fit_step_communication(steps);
  EXPECT_EQ(c.factor, 1);
  EXPECT_NEAR(c.issue_seconds, (2.0 / 9 - 3.0 / 25) / (4.0 / 9 + 9.0 / 25), 1e-12);
  const std::vector<ComposedStep> faster{{.seconds = 1, .medians = 2, .operations = 2}};
  EXPECT_EQ(fit_step_communication(faster).factor, 1);
  EXPECT_EQ(fit_step_communication(faster).issue_seconds, 0);
}

}  // namespace
}  // namespace orrery::executor
