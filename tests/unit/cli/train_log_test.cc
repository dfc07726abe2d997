#include "cli/train_log.h"
#include "base/json.h"

#include <gtest/gtest.h>

namespace orrery::cli {
namespace {

TEST(TrainLog, StatesWhatTrainingMeasured) {
  TrainLog log;
  log.model = "gpt2-tiny";
  log.plan_fingerprint = "a";
  log.program_fingerprint = "b";
  log.ranks = 2;
  log.steps = {{0, 5.5, 0.25}, {1, 5.25, 0.125}};
  log.step_time_s = 0.125;
  log.peak_memory_bytes = {7, 8};
  log.launches = {100, 90};
  EXPECT_EQ(to_json(log), base::Json::parse(R"({
    "schema": "orrery.train/1", "model": "gpt2-tiny", "plan_fingerprint": "a",
    "program_fingerprint": "b", "ranks": 2,
    "steps": [{"step": 0, "loss": 5.5, "seconds": 0.25},
              {"step": 1, "loss": 5.25, "seconds": 0.125}],
    "launches": [100, 90],
    "measured": {"step_time_s": 0.125, "peak_memory_bytes": [7, 8]}})"));
}

TEST(Median, OfOddEvenAndNone) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({}), 0);
}

}  // namespace
}  // namespace orrery::cli
