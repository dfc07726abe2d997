/// Commands with their whole output: exit code, stdout, stderr. Expected texts are
/// expected/<name>.txt; after an intended change ORRERY_UPDATE_GOLDEN=1 writes them anew, and the
/// difference is read before it is committed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>

#include "command_line_cases.h"
#include "command_line_inputs.h"
#include "run_cli.h"
#include "tests/support/paths.h"

namespace orrery::golden {
namespace {

std::string transcript(const Case& c) {
  const ScratchFolder folder;
  for (const auto& [name, text] : c.files) folder.write(name, text);
  const CliResult r = run_cli(c.arguments, folder.path());
  return "$ orrery " + c.arguments + "\nexit " + std::to_string(r.exit_code) + "\n--- stdout\n" +
         r.out + "--- stderr\n" + r.err;
}

void expect_text(const std::string& name, const std::string& actual) {
  const std::string path =
      std::string(tests::kSourceDir) + "/tests/golden/cli/expected/" + name + ".txt";
  if (std::getenv("ORRERY_UPDATE_GOLDEN")) std::ofstream(path, std::ios::binary) << actual;
  std::ifstream in(path, std::ios::binary);
  ASSERT_TRUE(in) << path << " is missing; ORRERY_UPDATE_GOLDEN=1 writes it";
  std::stringstream expected;
  expected << in.rdbuf();
  EXPECT_EQ(actual, expected.str());
}

class CommandLine : public testing::TestWithParam<Case> {};

TEST_P(CommandLine, SaysExactlyThis) { expect_text(GetParam().name, transcript(GetParam())); }
INSTANTIATE_TEST_SUITE_P(Golden, CommandLine, testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.name; });

TEST(CommandLine, PlanIsTheSameTwiceAndWithTwoThreads) {
  const ScratchFolder folder;
  const std::string plan =
      "plan --model llama-2-7b --cluster dgx-a100 --memory 36GiB --global-batch 32 "
      "--sequence-length 2048 --json --threads ";
  const CliResult once = run_cli(plan + "1", folder.path()),
                  again = run_cli(plan + "1", folder.path()),
                  two = run_cli(plan + "2", folder.path());
  EXPECT_EQ(once.exit_code, 0) << once.err;
  EXPECT_EQ(once.out, again.out);
  EXPECT_EQ(once.out, two.out);
}

TEST(CommandLine, LeastEnergyIsTheSameWithAnyThreads) {
  const ScratchFolder folder;
  const std::string plan =
      "plan --model gpt2 --cluster dgx-a100 --hosts 7 --global-batch 32 --minimise energy --json "
      "--threads ";
  const CliResult one = run_cli(plan + "1", folder.path());
  EXPECT_EQ(one.exit_code, 0) << one.err;
  for (const char* more : {"2", "5"})
    EXPECT_EQ(run_cli(plan + more, folder.path()).out, one.out) << more;
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(CommandLine, TableGivesTheSameBytesWithAnyThreadsAndCarriesColumnsThrough) {
  const ScratchFolder folder;
  folder.write("rows.csv", kRows);
  const CliResult one = run_cli("simulate --table rows.csv --out one.csv", folder.path());
  EXPECT_EQ(one.exit_code, 1);  // some rows are faulty
  EXPECT_EQ(one.out, "");
  EXPECT_EQ(run_cli("simulate --table rows.csv --out four.csv --threads 4", folder.path()).err,
            one.err);
  const std::string results = read_text(folder.path() / "one.csv");
  EXPECT_EQ(read_text(folder.path() / "four.csv"), results);
  EXPECT_NE(results.find("\"Megatron, 22 billion\""), std::string::npos);
  // Results of results: the columns are made anew, not twice.
  ASSERT_EQ(run_cli("simulate --table one.csv --out again.csv", folder.path()).exit_code, 1);
  const std::string again = read_text(folder.path() / "again.csv");
  EXPECT_EQ(again.substr(0, again.find('\n')), results.substr(0, results.find('\n')));
}

TEST(CommandLine, ARowOfATableIsWhatTheCommandSays) {
  const ScratchFolder folder;
  folder.write("rows.csv", "tp,pp,dp,zero,seq,micro_batch\r\n2,2,2,1,2048,2\r\n");
  const CliResult table =
      run_cli("simulate --table rows.csv --model llama-2-7b --cluster dgx-a100 --global-batch 64",
              folder.path());
  const CliResult flags = run_cli(
      "simulate --model llama-2-7b --cluster dgx-a100 --tp 2 --pp 2 --dp 2 --zero 1 --micro-batch "
      "2 --global-batch 64 --sequence-length 2048 --json",
      folder.path());
  std::smatch step;
  ASSERT_TRUE(std::regex_search(flags.out, step, std::regex(R"("step_time_s": ([0-9.]+))")));
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_NE(table.out.find("\r\n2,2,2,1,2048,2," + step[1].str() + ","), std::string::npos)
      << table.out << step[1];
}

/// Of a plan that is a function of the code base, made first; `then` uses plan.json.
std::string explained(const std::string& plan_arguments, const std::string& then) {
  const ScratchFolder folder;
  EXPECT_EQ(run_cli(plan_arguments + " --out plan.json", folder.path()).exit_code, 0);
  const CliResult r = run_cli(then, folder.path());
  return "$ orrery " + then + "\nexit " + std::to_string(r.exit_code) + "\n--- stdout\n" + r.out +
         "--- stderr\n" + r.err;
}

struct Explained {
  std::string name, plan, then;
};
void PrintTo(const Explained& e, std::ostream* out) { *out << e.then; }
class Explanations : public testing::TestWithParam<Explained> {};

TEST_P(Explanations, SayExactlyThis) {
  expect_text(GetParam().name, explained(GetParam().plan, GetParam().then));
}

const char* const kUniform =
    "plan --model llama-2-7b --cluster dgx-a100 --sequence-length 2048 --global-batch 32 --top 1 "
    "--fix pp=2,tp=2,micro_batch=1,zero=1,recompute=none --target megatron";
INSTANTIATE_TEST_SUITE_P(
    Golden, Explanations,
    testing::Values(Explained{"explain_text", kUniform,
                              "explain --plan plan.json --memory 40GiB --versus tp=8,pp=1"},
                    Explained{"explain_json", kUniform, "explain --plan plan.json --top 2 --json"},
                    Explained{"explain_infeasible", kUniform,
                              "explain --plan plan.json --memory 20GiB --versus tp=1,pp=1,zero=0"},
                    Explained{"explain_partition",
                              "partition --model gpt2 --cluster dgx-a100 --micro-batch 8 "
                              "--fused-attention --fix 'mlp in=B,P2x2'",
                              "explain --plan plan.json"},
                    Explained{"explain_wrong_values", kUniform,
                              "explain --plan plan.json --versus tp=3x,ppp=2,dp"}),
    [](const auto& tested) { return tested.param.name; });

TEST(CommandLine, PlansForOtherWorkAreNotHeldAgainstEachOther) {
  const ScratchFolder folder;
  ASSERT_EQ(
      run_cli("plan --model gpt2 --cluster dgx-a100 --top 1 --out a.json", folder.path()).exit_code,
      0);
  ASSERT_EQ(run_cli("plan --model gpt2 --cluster dgx-a100 --top 1 --global-batch 32 --out b.json",
                    folder.path())
                .exit_code,
            0);
  const CliResult r = run_cli("explain --plan a.json --versus b.json", folder.path());
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(r.err,
            "error[E0006]: the plans differ in global_batch: 64 and 32; plans are compared for the "
            "same work\n");
}

TEST(CommandLine, PlanForAnotherModelIsRefused) {
  const ScratchFolder folder;
  ASSERT_EQ(
      run_cli("plan --model gpt2 --cluster dgx-a100 --out plan.json", folder.path()).exit_code, 0);
  const CliResult r = run_cli("simulate --plan plan.json --model gpt2-xl", folder.path());
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("gpt2"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("error[E"), std::string::npos) << r.err;
  EXPECT_EQ(r.out, "");
}

TEST(CommandLine, RanksThatAreNotThePlansAreRefused) {
  const ScratchFolder folder;
  ASSERT_EQ(
      run_cli("plan --model gpt2 --cluster dgx-a100 --out plan.json", folder.path()).exit_code, 0);
  const CliResult r = run_cli("train --plan plan.json --ranks 3", folder.path());
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(r.err,
            "error[E0006]: --ranks 3, but the plan is for 8 ranks; use --ranks 8, or plan again "
            "for 3 devices\n");
}

TEST(CommandLine, SaysItsVersionAndExplainsACommand) {
  const ScratchFolder folder;
  EXPECT_TRUE(std::regex_match(run_cli("--version", folder.path()).out,
                               std::regex("orrery [0-9]+\\.[0-9]+\\.[0-9]+\n")));
  EXPECT_EQ(run_cli("help solve", folder.path()).out, run_cli("solve --help", folder.path()).out);
  EXPECT_EQ(run_cli("help slove", folder.path()).exit_code, 1);
}

TEST(CommandLine, CheckAcceptsWhatSolveAndPlanSayAndRefusesOtherNumbers) {
  const ScratchFolder folder;
  folder.write("instance.json", kInstance);
  const std::string solution = run_cli("solve instance.json --json", folder.path()).out;
  folder.write("solution.json", solution);
  const CliResult accepted = run_cli("check solution.json --instance instance.json", folder.path());
  EXPECT_EQ(accepted.exit_code, 0) << accepted.err;
  EXPECT_EQ(accepted.out,
            "cost    32 ps (32 ps)  ok\nmemory  24 B of 24 B  ok\nbound   32 ps (32 ps) by the "
            "multipliers  ok\n"
            "gap     0.0000 % to this bound  ok\nthe answer holds\n");
  folder.write("solution.json",
               std::regex_replace(solution, std::regex(R"("bound_ps": 32)"), R"("bound_ps": 31)"));
  // weaker, and true
  EXPECT_EQ(run_cli("check solution.json --instance instance.json", folder.path()).exit_code, 0);
  folder.write("solution.json",
               std::regex_replace(solution, std::regex(R"("numerator": 9)"), R"("numerator": 8)"));
  const CliResult refused = run_cli("check solution.json --instance instance.json", folder.path());
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.err, "solution.json: error[E0006]: multiplier 8 / 8 proves 31 ps, not 32\n");

  const CliResult plan =
      run_cli("plan --model gpt2 --cluster dgx-a100 --check --json --out plan.json", folder.path());
  EXPECT_EQ(plan.exit_code, 0);
  EXPECT_NE(plan.err.find("the certificate holds"), std::string::npos) << plan.err;
  folder.write("answer.json", plan.out);
  const CliResult checked = run_cli("check answer.json", folder.path());
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_TRUE(std::regex_match(
      checked.out, std::regex("cost    .*  ok\nmemory  .*  ok\nbound   .* by the multipliers  ok\n"
                              "gap     .* % to this bound  ok\nthe answer holds\n")))
      << checked.out;
  folder.write("answer.json", std::regex_replace(plan.out, std::regex(R"("multiplier_bound_ps": )"),
                                                 R"("multiplier_bound_ps": 1)"));
  const CliResult exaggerated = run_cli("check answer.json", folder.path());
  EXPECT_EQ(exaggerated.exit_code, 1);
  EXPECT_NE(exaggerated.out.find("by the multipliers  fault\n"), std::string::npos)
      << exaggerated.out;
  EXPECT_EQ(run_cli("check plan.json", folder.path()).exit_code, 0);
  EXPECT_EQ(run_cli("check plan.json --memory 100MiB", folder.path()).exit_code, 2);
  folder.write("answer.json",
               std::regex_replace(plan.out, std::regex(R"("cost_ps": )"), R"("cost_ps": 1)"));
  EXPECT_EQ(run_cli("check answer.json", folder.path()).exit_code, 1);
}

TEST(CommandLine, WhatAPlanStatesIsRefusedBesideIt) {
  const ScratchFolder folder;
  ASSERT_EQ(
      run_cli("plan --model gpt2 --cluster dgx-a100 --out plan.json", folder.path()).exit_code, 0);
  for (const char* option : {"--tp 4", "--precision fp32", "--sequence-length 128"}) {
    const CliResult r = run_cli(std::string("simulate --plan plan.json ") + option, folder.path());
    EXPECT_EQ(r.exit_code, 1) << option;
    EXPECT_NE(r.err.find("beside --plan, which states it"), std::string::npos) << r.err;
  }
}

TEST(CommandLine, OutputThatCannotBeWrittenIsAFailure) {
  const ScratchFolder folder;
  for (const char* command : {"list models", "list models --json"}) {
    folder.write("run.sh", "'" + program_under_test().string() + "' " + command + " >/dev/full");
    const CliResult r = run_cli("run.sh", folder.path(), "/bin/sh");
    EXPECT_EQ(r.exit_code, 3) << command;
    EXPECT_NE(r.err.find("cannot write standard output: No space left"), std::string::npos)
        << r.err;
  }
}

TEST(CommandLine, AFailedWriteLeavesTheOldFile) {
  const ScratchFolder folder;
  const CliResult r =
      run_cli("plan --model gpt2 --cluster dgx-a100 --out nowhere/plan.json", folder.path());
  EXPECT_EQ(r.exit_code, 1) << r.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "nowhere"));
  std::filesystem::create_directory(folder.path() / "there");
  EXPECT_EQ(run_cli("plan --model gpt2 --cluster dgx-a100 --out there", folder.path()).exit_code,
            1);
}

}  // namespace
}  // namespace orrery::golden
