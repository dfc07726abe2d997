#include "cli/train_log.h"
#include "base/json.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"

namespace orrery::cli {
namespace {

TEST(TrainLog, ReadsBackWhatItWrote) {
  TrainLog log;
  log.model = "gpt2-tiny";
  log.plan_fingerprint = "a";
  log.program_fingerprint = "b";
  log.ranks = 2;
  log.steps = {{0, 5.5, 0.25}, {1, 5.25, 0.125}};
  log.step_time_s = 0.125;
  log.peak_memory_bytes = {7, 8};
  const auto path =
      (std::filesystem::temp_directory_path() / "orrery-train-log-test.json").string();
  ASSERT_TRUE(base::write_json(path, to_json(log)));
  const auto back = load_train_log(path);
  ASSERT_TRUE(back);
  EXPECT_EQ(to_json(*back), to_json(log));
  ASSERT_TRUE(base::write_file_atomic(path, R"({"schema": "orrery.plan/1"})"));
  EXPECT_FALSE(load_train_log(path));
  std::filesystem::remove(path);
}

TEST(Median, OfOddEvenAndNone) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({}), 0);
}

}  // namespace
}  // namespace orrery::cli
