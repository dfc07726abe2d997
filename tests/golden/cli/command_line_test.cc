/// Commands with their whole output: exit code, stdout, stderr. Expected texts are expected/<name>.txt; after an intended change
/// ORRERY_UPDATE_GOLDEN=1 writes them anew, and the difference is read before it is committed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>

#include "run_cli.h"

namespace orrery::golden {
namespace {

struct Case {
  std::string name;
  std::string arguments;
  std::map<std::string, std::string> files = {};   // made before the command runs
};

const char* const kPlan = R"({
  "schema": "orrery.plan/1",
)";

const char* const kCluster = R"(name: small
description: two devices on one switch
device:
  name: D
  peak_fp32: 10TFLOP/s
  latncy: 3us
)";

std::vector<Case> cases() {
  return {
      {"help", "--help"},
      {"plan_help", "plan --help"},
      {"unknown_command", "simulat"},
      {"unknown_option", "simulate --modle gpt2 --cluster dgx-a100"},
      {"unknown_model", "simulate --model lama-2-7b --cluster dgx-a100"},
      {"unknown_cluster", "simulate --model gpt2 --cluster dgx-a10"},
      {"unknown_key", "simulate --model gpt2 --cluster bad.yaml", {{"bad.yaml", kCluster}}},
      {"missing_unit", "plan --model gpt2 --cluster dgx-a100 --memory 36"},
      {"tp_does_not_divide_heads", "simulate --model gpt2 --cluster dgx-a100 --tp 8"},
      {"interleaved_micro_batches", "simulate --model gpt2 --cluster dgx-a100 --pp 4 --schedule interleaved --virtual-stages 3 --global-batch 12"},
      {"zero_devices", "simulate --model gpt2 --cluster dgx-a100 --tp 0"},
      {"zero_hosts", "simulate --model gpt2 --cluster dgx-a100 --hosts 0"},
      {"too_many_ranks", "simulate --model llama-2-7b --cluster dgx-a100 --tp 8 --dp 4"},
      {"truncated_json", "simulate --plan plan.json", {{"plan.json", kPlan}}},
      {"missing_file", "simulate --plan nowhere.json"},
      {"unreadable_file", "simulate --plan ."},
      {"infeasible", "plan --model llama-2-7b --cluster dgx-a100 --memory 4GiB --global-batch 64 --sequence-length 2048"},
      {"nothing_divides", "plan --model gpt2-xl --cluster dgx-a100 --hosts 8 --global-batch 1"},
      {"infeasible_simulation", "simulate --model llama-2-7b --cluster dgx-a100 --dp 8 --memory 40GiB --sequence-length 2048"},
      {"list_models", "list models"},
      {"list_clusters_json", "list clusters --json"},
      {"simulate_uniform", "simulate --model llama-2-7b --cluster dgx-a100 --tp 2 --pp 2 --dp 2 --zero 1 --global-batch 64 --sequence-length 2048 --json"},
      {"simulate_text", "simulate --model gpt2-xl --cluster dgx-h100 --pp 4 --dp 2 --recompute full --micro-batch 2 --global-batch 64"},
      {"plan_profile",
       "plan --model llama-2-7b --cluster dgx-a100 --profile llama2-7b-a100-8gpu --memory 36GiB --global-batch 64 --sequence-length 2048 --top 3 --json"},
      {"plan_target", "plan --model llama-2-7b --cluster dgx-a100 --sequence-length 2048 --target megatron --fix tp=2,recompute=none --top 2"},
      {"plan_space", "plan --model gpt2-xl --cluster dgx-a100 --global-batch 64 --space dp,zero3 --top 2"},
      {"plan_unknown_dimension", "plan --model gpt2-xl --cluster dgx-a100 --space dp,zero4 --fix tp=two,microbatch=1"},
      {"plan_unknown_target", "plan --model gpt2-xl --cluster dgx-a100 --target megatorn"},
      {"explain_help", "explain --help"},
      {"explain_missing_plan", "explain --plan nowhere.json"},
  };
}

/// Wall-clock figures are the one thing that may differ.
std::string without_times(const std::string& text) {
  const std::string json = std::regex_replace(text, std::regex(R"("seconds": [0-9.eE+-]+)"), R"("seconds": *)");
  return std::regex_replace(json, std::regex(R"( in [0-9.]+ s:)"), " in * s:");
}

std::string transcript(const Case& c) {
  const ScratchFolder folder;
  for (const auto& [name, text] : c.files) folder.write(name, text);
  const CliResult r = run_cli(c.arguments, folder.path());
  return "$ orrery " + c.arguments + "\nexit " + std::to_string(r.exit_code) + "\n--- stdout\n" + without_times(r.out) + "--- stderr\n" +
         without_times(r.err);
}

void expect_text(const std::string& name, const std::string& actual) {
  const std::string path = std::string(ORRERY_SOURCE_DIR) + "/tests/golden/cli/expected/" + name + ".txt";
  if (std::getenv("ORRERY_UPDATE_GOLDEN")) std::ofstream(path, std::ios::binary) << actual;
  std::ifstream in(path, std::ios::binary);
  ASSERT_TRUE(in) << path << " is missing; ORRERY_UPDATE_GOLDEN=1 writes it";
  std::stringstream expected;
  expected << in.rdbuf();
  EXPECT_EQ(actual, expected.str());
}

class CommandLine : public testing::TestWithParam<Case> {};

TEST_P(CommandLine, SaysExactlyThis) { expect_text(GetParam().name, transcript(GetParam())); }
INSTANTIATE_TEST_SUITE_P(Golden, CommandLine, testing::ValuesIn(cases()), [](const auto& tested) { return tested.param.name; });

TEST(CommandLine, PlanIsTheSameTwiceAndWithTwoThreads) {
  const ScratchFolder folder;
  const std::string plan = "plan --model llama-2-7b --cluster dgx-a100 --memory 36GiB --global-batch 32 --sequence-length 2048 --json --threads ";
  const CliResult once = run_cli(plan + "1", folder.path()), again = run_cli(plan + "1", folder.path()), two = run_cli(plan + "2", folder.path());
  EXPECT_EQ(once.exit_code, 0) << once.err;
  EXPECT_EQ(without_times(once.out), without_times(again.out));
  EXPECT_EQ(without_times(once.out), without_times(two.out));
}

/// Of a plan that is a function of the code base, made first; `then` uses plan.json.
std::string explained(const std::string& plan_arguments, const std::string& then) {
  const ScratchFolder folder;
  EXPECT_EQ(run_cli(plan_arguments + " --out plan.json", folder.path()).exit_code, 0);
  const CliResult r = run_cli(then, folder.path());
  return "$ orrery " + then + "\nexit " + std::to_string(r.exit_code) + "\n--- stdout\n" + r.out + "--- stderr\n" + r.err;
}

struct Explained {
  std::string name, plan, then;
};
class Explanations : public testing::TestWithParam<Explained> {};

TEST_P(Explanations, SayExactlyThis) { expect_text(GetParam().name, explained(GetParam().plan, GetParam().then)); }

const char* const kUniform = "plan --model llama-2-7b --cluster dgx-a100 --sequence-length 2048 --global-batch 32 --top 1 --fix pp=2,tp=2,micro_batch=1,zero=1,recompute=none --target megatron";
INSTANTIATE_TEST_SUITE_P(
    Golden, Explanations,
    testing::Values(Explained{"explain_text", kUniform, "explain --plan plan.json --memory 40GiB --versus tp=8,pp=1"},
                    Explained{"explain_json", kUniform, "explain --plan plan.json --top 2 --json"},
                    Explained{"explain_infeasible", kUniform, "explain --plan plan.json --memory 20GiB --versus tp=1,pp=1,zero=0"},
                    Explained{"explain_wrong_values", kUniform, "explain --plan plan.json --versus tp=3x,ppp=2,dp"}),
    [](const auto& tested) { return tested.param.name; });

TEST(CommandLine, PlansForOtherWorkAreNotHeldAgainstEachOther) {
  const ScratchFolder folder;
  ASSERT_EQ(run_cli("plan --model gpt2 --cluster dgx-a100 --top 1 --out a.json", folder.path()).exit_code, 0);
  ASSERT_EQ(run_cli("plan --model gpt2 --cluster dgx-a100 --top 1 --global-batch 32 --out b.json", folder.path()).exit_code, 0);
  const CliResult r = run_cli("explain --plan a.json --versus b.json", folder.path());
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(r.err, "error[E0006]: the plans differ in global_batch: 64 and 32; plans are compared for the same work\n");
}

TEST(CommandLine, PlanForAnotherModelIsRefused) {
  const ScratchFolder folder;
  ASSERT_EQ(run_cli("plan --model gpt2 --cluster dgx-a100 --out plan.json", folder.path()).exit_code, 0);
  const CliResult r = run_cli("simulate --plan plan.json --model gpt2-xl", folder.path());
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("gpt2"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("error[E"), std::string::npos) << r.err;
  EXPECT_EQ(r.out, "");
}

TEST(CommandLine, RanksThatAreNotThePlansAreRefused) {
  const ScratchFolder folder;
  ASSERT_EQ(run_cli("plan --model gpt2 --cluster dgx-a100 --out plan.json", folder.path()).exit_code, 0);
  const CliResult r = run_cli("train --plan plan.json --ranks 3", folder.path());
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(r.err, "error[E0006]: --ranks 3, but the plan is for 8 ranks; use --ranks 8, or plan again for 3 devices\n");
}

TEST(CommandLine, AFailedWriteLeavesTheOldFile) {
  const ScratchFolder folder;
  const CliResult r = run_cli("plan --model gpt2 --cluster dgx-a100 --out nowhere/plan.json", folder.path());
  EXPECT_EQ(r.exit_code, 1) << r.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "nowhere"));
}

}  // namespace
}  // namespace orrery::golden
