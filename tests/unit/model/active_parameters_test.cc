#include "model/active_parameters.h"

#include <gtest/gtest.h>

namespace orrery::model {
namespace {

TEST(ActiveParameters, OfADenseModelAreAll) {
  const ModelSpec gpt2 = *find_model("gpt2");
  EXPECT_EQ(active_parameters(gpt2), gpt2.parameters());
}

// 32 blocks of 8 experts of 3 * 4096 * 14336 parameters, of which a token reads 2.
TEST(ActiveParameters, OfMixtralLeaveOutSixOfEightExperts) {
  const ModelSpec mixtral = *find_model("mixtral-8x7b");
  EXPECT_EQ(mixtral.parameters() - active_parameters(mixtral), 32LL * 6 * 3 * 4096 * 14336);
  EXPECT_NEAR(static_cast<double>(active_parameters(mixtral)), 12.9e9, 0.05e9);
}

}  // namespace
}  // namespace orrery::model
