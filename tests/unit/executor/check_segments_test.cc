// What the executor cannot run is refused by name before a rank starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/runtime/run.h"
#include "plan/lowering/lower.h"

namespace orrery::executor {
namespace {

base::Result<void> checked(const char* name,
                           plan::UniformOptions options = {.dp = 2, .global_batch = 4}) {
  const auto model = model::find_model(name).value();
  const plan::Plan plan = plan::uniform_plan(model, "local", 1, options).value();
  return check_segments(plan::lower(plan, model).value());
}

TEST(CheckSegments, DenseModelsMixturesAndScansRun) {
  for (const char* name : {"gpt2-tiny", "llama-tiny", "mixtral-tiny", "mamba2-tiny",
                           "nemotron-h-tiny", "qwen3-next-tiny", "minimax-tiny"})
    EXPECT_TRUE(checked(name)) << name;
}

TEST(CheckSegments, ANormOverAllHeadsOfLightningAttentionIsNotSplit) {
  const auto result = checked("minimax-tiny", {.tp = 2, .global_batch = 4});
  ASSERT_FALSE(result);
  EXPECT_THAT(base::to_string(result.error()),
              testing::HasSubstr("tp 2 splits the norm of lightning attention"));
  EXPECT_EQ(result.error().size(), 1U);
}

TEST(CheckSegments, ExpertsBelowTheComputeTypeAreRefusedSegmentBySegment) {
  const auto result = checked(
      "mixtral-tiny", {.dp = 2, .global_batch = 4, .precision = model::Precision::kFp8Current});
  ASSERT_FALSE(result);
  const std::string text = base::to_string(result.error());
  for (const char* segment : {"'expert_in'", "'expert_out'"})
    EXPECT_THAT(text, testing::HasSubstr(segment));
  for (const base::Diagnostic& d : result.error()) EXPECT_EQ(d.code, base::ErrorCode::kUnsupported);
}

// llama-tiny: 128 features, 352 in the MLP; in halves 64 and 176.
TEST(CheckSegments, BlocksOfScalesAreWhole) {
  const auto of = [](model::Precision p, int tp) {
    return checked("llama-tiny", {.tp = tp, .global_batch = 4, .precision = p});
  };
  EXPECT_TRUE(of(model::Precision::kFp8Current, 2));
  EXPECT_TRUE(of(model::Precision::kNvFp4, 2));
  EXPECT_TRUE(of(model::Precision::kMxFp8, 1));
  EXPECT_THAT(base::to_string(of(model::Precision::kMxFp8, 2).error()),
              testing::HasSubstr("mxfp8 trains with whole blocks of 32: segment 'mlp_out' has 176 "
                                 "input features on a rank"));
  EXPECT_THAT(base::to_string(of(model::Precision::kFp8Block, 1).error()),
              testing::HasSubstr("whole blocks of 128: segment 'mlp_out' has 352 input features"));
}

}  // namespace
}  // namespace orrery::executor
