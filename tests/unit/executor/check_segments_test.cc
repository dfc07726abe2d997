// What the executor cannot run is refused by name before a rank starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/runtime/run.h"
#include "plan/lowering/lower.h"

namespace orrery::executor {
namespace {

base::Result<void> checked(const char* name) {
  const auto model = model::find_model(name).value();
  const plan::Plan plan =
      plan::uniform_plan(model, "local", 1, {.dp = 2, .global_batch = 4}).value();
  return check_segments(plan::lower(plan, model).value());
}

TEST(CheckSegments, DenseModelsRun) {
  for (const char* name : {"gpt2-tiny", "llama-tiny"}) EXPECT_TRUE(checked(name)) << name;
}

TEST(CheckSegments, ExpertsAreRefusedSegmentBySegment) {
  const auto result = checked("mixtral-tiny");
  ASSERT_FALSE(result);
  const std::string text = base::to_string(result.error());
  for (const char* segment : {"'router'", "'dispatch'", "'expert_in'", "'expert_out'", "'combine'"})
    EXPECT_THAT(text, testing::HasSubstr(segment));
  for (const base::Diagnostic& d : result.error()) EXPECT_EQ(d.code, base::ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace orrery::executor
