// Whose objective the executor has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/inputs.h"

namespace orrery::cli {
namespace {

TEST(Objective, DecoderOfAnyBlocksAndEncodersAreTrained) {
  for (const char* name : {"gpt2", "mixtral-8x7b", "gemma-2-9b", "deepseek-v3", "bert-large",
                           "vit-base", "t5-small", "swin-base"})
    EXPECT_TRUE(check_objective(*model::find_model(name))) << name;
}

TEST(Objective, OthersAreRefusedByWhatTheyAre) {
  const auto said = [](const char* name) {
    return base::to_string(check_objective(*model::find_model(name)).error());
  };
  EXPECT_THAT(said("llama-4-scout-17b-16e"), testing::HasSubstr("gates on what experts read"));
}

}  // namespace
}  // namespace orrery::cli
