/// Documents that the program writes match docs/schemas; recorded outputs are the lint's
/// (tests/lint/json_schemas.py).
#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>

#include "run_cli.h"
#include "tests/support/paths.h"

namespace orrery::golden {
namespace {

const char* const kInstance = R"({"schema": "orrery.instance/1", "budget_bytes": 9,
 "layers": [{"options": [{"name": "a", "time_ps": 1, "memory_bytes": 5},
                         {"name": "b", "time_ps": 2, "memory_bytes": 3}]}]})";

class Documents : public testing::Test {
 protected:
  /// Runs the program; what it prints is the file `name`, or it wrote that itself.
  void expect_document(const std::string& arguments, const std::string& name, int exit_code = 0) {
    const CliResult r = run_cli(arguments, folder_.path());
    ASSERT_EQ(r.exit_code, exit_code) << arguments << ": " << r.err;
    if (!r.out.empty() && r.out.front() == '{') folder_.write(name, r.out);
    const std::string source = tests::kSourceDir,
                      command = "python3 -B '" + source + "/tests/lint/json_schemas.py' '" +
                                source + "' '" + (folder_.path() / name).string() + "'";
    EXPECT_EQ(std::system(command.c_str()), 0) << arguments;
  }

  const ScratchFolder folder_;
};

TEST_F(Documents, OfAPlanAndItsTimelineMatchTheirSchemas) {
  expect_document("plan --model gpt2-tiny --cluster dgx-1-v100 --out plan.json --json --check",
                  "answer.json");
  expect_document("check answer.json --json", "check.json");
  expect_document("check plan.json --json", "check.json");
  expect_document("simulate --plan plan.json --trace trace.json --json", "simulation.json");
  for (const char* framework : {"megatron", "accelerate", "galvatron"}) {
    expect_document(std::string("export --plan plan.json --to ") + framework + " --json",
                    "export.json");
  }
  expect_document("compare trace.json trace.json --json", "comparison.json");
  expect_document("compare trace.json trace.json", "trace.json");
  expect_document("compare trace.json trace.json", "plan.json");
}

TEST_F(Documents, OfAPartitionedPlanMatchTheirSchemas) {
  expect_document(
      "partition --model gpt2-tiny --cluster dgx-1-v100 --devices 4 --micro-batch 8 --skew "
      "--out plan.json --json",
      "partition.json");
  expect_document("simulate --plan plan.json --trace trace.json --json", "simulation.json");
  expect_document("compare trace.json trace.json", "plan.json");
  expect_document("compare trace.json trace.json", "trace.json");
}

TEST_F(Documents, OfPlansThatCopyToTheHostMatchTheirSchemas) {
  const std::string plan = "plan --model gpt2-tiny --cluster dgx-a100 --json --space usual,offload";
  expect_document(plan, "answer.json");
  expect_document(plan + " --fix recompute=offload,states=host --out plan.json", "answer.json");
  expect_document("check answer.json --json", "check.json");
  expect_document("simulate --plan plan.json --trace trace.json --json", "simulation.json");
  expect_document("explain --plan plan.json --json", "explanation.json");
  expect_document("compare trace.json trace.json", "plan.json");
}

TEST_F(Documents, OfAnAnswerWithPartitionsMatchTheirSchemas) {
  expect_document(
      "plan --model gpt2-tiny --cluster dgx-1-v100 --global-batch 8 --space dp,tp,spatial-temporal "
      "--json",
      "answer.json");
}

TEST_F(Documents, OfMixturesPipelinesAndScenariosMatchTheirSchemas) {
  expect_document(
      "plan --model mixtral-tiny --cluster dgx-1-v100 --global-batch 8 --timing "
      "--target megatron --json",
      "answer.json");
  expect_document(
      "simulate --model llama-tiny --cluster dgx-1-v100 --pp 2 --schedule interleaved "
      "--virtual-stages 2 --global-batch "
      "16 "
      "--mtbf 1000h --json",
      "simulation.json");
}

TEST_F(Documents, OfTheMachineAndTheCatalogMatchTheirSchemas) {
  expect_document("doctor --json", "doctor.json");
  expect_document("list models --json", "models.json");
}

TEST_F(Documents, OfASweepMatchTheirSchema) {
  expect_document(
      "sweep --model gpt2-tiny --cluster dgx-1-v100 --vary global-batch=8..32 --vary "
      "memory=1KiB,1GiB --json",
      "sweep.json");
  expect_document("sweep --model gpt2-tiny --cluster dgx-1-v100 --vary memory=1KiB --json",
                  "sweep.json", 2);
  expect_document(
      "sweep --model gpt2-tiny --cluster dgx-a100 --vary hosts=1..4:1 --tokens 1B --deadline 1d "
      "--price-per-gpu-hour 2$ --carbon 400 --smallest --json",
      "sweep.json");
  expect_document("plan --model gpt2-tiny --cluster dgx-1-v100 --out plan.json --json",
                  "answer.json");
  expect_document("sweep --plan plan.json --vary nvlink.bandwidth=0.5x,2x --json", "sweep.json");
}

TEST_F(Documents, WithoutAPlanMatchTheirSchemas) {
  expect_document("plan --model llama-2-7b --cluster rtx-titan-pcie --memory 2GiB --json",
                  "answer.json", 2);
  expect_document("plan --model gpt2-tiny --cluster dgx-1-v100 --max-states 1 --json",
                  "answer.json");
}

TEST_F(Documents, OfCatalogsAndNetworksMatchTheirSchemas) {
  for (const std::string what : {"models", "clusters", "profiles", "tunings"})
    expect_document("list " + what + " --json", "list.json");
  expect_document("topology show h100-fat-tree --hosts 8 --json", "topology.json");
  expect_document("collective --cluster dgx-h100 --op all_reduce --bytes 1MiB --json",
                  "collective.json");
}

/// A wall time differs from run to run, so a document holds one only where it is asked for.
TEST_F(Documents, SayTheirTimingOnRequest) {
  folder_.write("instance.json", kInstance);
  const std::regex field(R"("seconds": [0-9.e-]+)"),
      words(R"(search: optimal[a-z ]* in [0-9.]+ s:)");
  for (const std::string command :
       {"plan --model gpt2-tiny --cluster dgx-1-v100 --global-batch 8", "solve instance.json"}) {
    const CliResult silent = run_cli(command + " --json", folder_.path()),
                    timed = run_cli(command + " --json --timing", folder_.path()),
                    text = run_cli(command + " --timing", folder_.path());
    EXPECT_FALSE(std::regex_search(silent.out, field)) << command;
    EXPECT_TRUE(std::regex_search(timed.out, field)) << command;
    EXPECT_TRUE(std::regex_search(text.out, words)) << command;
  }
  expect_document("solve instance.json --json --timing --check", "solution.json");
}

}  // namespace
}  // namespace orrery::golden
