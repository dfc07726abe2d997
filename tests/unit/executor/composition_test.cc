#include "executor/measure/composition.h"

#include <gtest/gtest.h>

#include <vector>

namespace orrery::executor {
namespace {

TEST(FitComposition, FindsFactorAndOverheadOfSmallAndLargeOperations) {
  std::vector<ComposedStep> steps;
  for (const double length : {1e-5, 1e-4, 2e-3})
    steps.push_back(
        {.seconds = 100 * (1.05 * length + 2e-6), .medians = 100 * length, .operations = 100});
  const Composition c = fit_composition(steps);
  EXPECT_NEAR(c.factor, 1.05, 1e-9);
  EXPECT_NEAR(c.overhead, 2e-6, 1e-15);
  EXPECT_NEAR(c.residual, 0, 1e-9);
}

TEST(FitComposition, OperationsOfAlikeLengthHaveAFactorAlone) {
  const std::vector<ComposedStep> steps{{.seconds = 1.1, .medians = 1, .operations = 100},
                                        {.seconds = 2.2, .medians = 2, .operations = 150}};
  const Composition c = fit_composition(steps);
  EXPECT_NEAR(c.factor, 1.1, 1e-12);
  EXPECT_EQ(c.overhead, 0);
}

TEST(FitComposition, AnOverheadIsNeverNegative) {
  const std::vector<ComposedStep> steps{{.seconds = 0.9e-3, .medians = 1e-3, .operations = 100},
                                        {.seconds = 1.1, .medians = 1, .operations = 100}};
  const Composition c = fit_composition(steps);
  EXPECT_EQ(c.overhead, 0);
  EXPECT_GT(c.factor, 0.9);
  EXPECT_LT(c.factor, 1.1);
  EXPECT_GT(c.residual, 0.05);
}

}  // namespace
}  // namespace orrery::executor
