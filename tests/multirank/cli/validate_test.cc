/// The whole loop on this machine: calibrate, plan, simulate, train, compare. Times are reported,
/// not judged (the machine may be busy); what must hold on any machine is judged: structure,
/// memory, exact losses from one process to two.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/file.h"
#include "base/json.h"
#include "tests/support/json_file.h"
#include "tests/support/paths.h"
#include "tests/support/scratch_folder.h"

namespace orrery::cli {
namespace {

namespace fs = std::filesystem;

class Validate : public testing::Test {
 protected:
  int run(const std::string& arguments) const {
    const std::string command = "cd '" + folder_.string() + "' && XDG_CACHE_HOME='" +
                                folder_.string() + "' " + tests::kCli + " " + arguments;
    return WEXITSTATUS(std::system(command.c_str()));
  }
  /// A document, held against its schema.
  base::Json json(const std::string& name) const {
    const std::string source = tests::kSourceDir,
                      command = "python3 -B '" + source + "/tests/lint/json_schemas.py' '" +
                                source + "' '" + (folder_ / name).string() + "'";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return tests::read_json(folder_ / name).value();
  }

  const tests::ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path();
};

TEST_F(Validate, PredictsMemoryAndMeasuresEveryPlan) {
  ASSERT_EQ(run("validate --model gpt2-tiny --ranks 2 --plans 5 --rounds 4 --steps 4 --budget 10s "
                "--json > validation.json"),
            0);
  const base::Json answer = json("validation.json");
  ASSERT_EQ(answer.at("plans").size(), 5U);
  for (const base::Json& p : answer.at("plans")) {
    EXPECT_GT(p.at("predicted").at("step_time_s").get<double>(), 0) << p.at("name");
    EXPECT_GT(p.at("measured").at("step_time_s").get<double>(), 0) << p.at("name");
  }
  EXPECT_LE(answer.at("summary").at("max_memory_error").get<double>(), 0.05);
}

TEST_F(Validate, ACalibratedProfileIsHeldAgainstBlocksOfOtherShapes) {
  ASSERT_EQ(run("calibrate --out profile.json --ranks 2 --budget 12s --measure > blocks.txt"), 0);
  json("profile.json");
  std::ifstream blocks(folder_ / "blocks.txt");
  EXPECT_EQ(std::count(std::istreambuf_iterator<char>(blocks), {}, '\n'), 10)
      << "a title, eight blocks, a summary";
  ASSERT_EQ(run("calibrate --check ./profile.json --measure --json > check.json"), 0);
  const base::Json check = json("check.json");
  ASSERT_EQ(check.at("blocks").size(), 8U);
  for (const base::Json& b : check.at("blocks")) {
    EXPECT_GT(b.at("predicted_s").get<double>(), 0) << b.at("name");
    EXPECT_GT(b.at("measured_s").get<double>(), 0) << b.at("name");
  }
  ASSERT_EQ(check.at("coverage").size(), 2U);
  // of the first model calibrated
  EXPECT_GT(check.at("coverage").at(0).at("compute").at("measured").get<double>(), 0.5);
}

TEST_F(Validate, EveryRankClassOfAPlanForEightDevicesIsReplayedOnThisOne) {
  ASSERT_EQ(run("plan --model llama-tiny --cluster dgx-1-v100 --precision fp32 --global-batch 16 "
                "--fix tp=2,pp=2,zero=1,schedule=1f1b --out plan.json > /dev/null"),
            0);
  ASSERT_EQ(run("replay --plan plan.json --device cpu --steps 1 --trace trace.json --json > "
                "replay.json"),
            0);
  const base::Json replay = json("replay.json");
  ASSERT_EQ(replay.at("classes").size(), 2U);
  for (const base::Json& k : replay.at("classes")) {
    EXPECT_EQ(k.at("peak_memory").at("predicted_bytes"), k.at("peak_memory").at("replayed_bytes"));
    EXPECT_GT(k.at("step_alone").at("replayed_s").get<double>(),
              k.at("communication").at("predicted_s").get<double>());
  }
  EXPECT_TRUE(replay.contains("with_replayed_compute"));
  ASSERT_EQ(run("simulate --plan plan.json --trace predicted.json > /dev/null"), 0);
  ASSERT_EQ(run("compare predicted.json trace.json --json > comparison.json"), 0);
  const base::Json comparison = json("comparison.json");
  EXPECT_GT(comparison.at("matched").get<int>(), 100);
  EXPECT_EQ(comparison.at("only_predicted"), 0);
  EXPECT_EQ(comparison.at("only_measured"), 0);
}

TEST_F(Validate, PredictedAndMeasuredTimelinesMatchSpanBySpan) {
  ASSERT_EQ(run("plan --model llama-tiny --cluster local --precision fp32 --global-batch 8 --out "
                "plan.json > /dev/null"),
            0);
  const base::Json plan = json("plan.json");
  ASSERT_EQ(run("simulate --plan plan.json --trace predicted.json > /dev/null"), 0);
  ASSERT_EQ(run("train --plan plan.json --steps 2 --trace measured.json --log log.json --quiet"),
            0);
  ASSERT_EQ(run("compare predicted.json measured.json --json > comparison.json"), 0);
  for (const char* document : {"predicted.json", "measured.json", "log.json"}) json(document);
  const base::Json c = json("comparison.json");
  EXPECT_GT(c.at("matched").get<int>(), 50);
  EXPECT_EQ(c.at("only_predicted").get<int>(), 0);
  EXPECT_EQ(c.at("only_measured").get<int>(), 0);
}

}  // namespace
}  // namespace orrery::cli
