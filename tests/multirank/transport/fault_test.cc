// A fault of any kind ends all ranks within ten seconds, and all of them name the same cause.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "ranks_fixture.h"
#include "tests/multirank/executor/plan_cases_fixture.h"
#include "tests/support/rank_body.h"

namespace orrery::executor::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kKilled = 128 + 9;
constexpr double kStartSeconds = 2;
const Variables kPatient{{"ORRERY_STALL_SECONDS", "30"}};  // what is found is no stall

Ended train_with(const std::string& fault, const std::string& plan, Variables variables = {},
                 int ranks = 0) {
  variables.insert(
      {{"ORRERY_FAKE_FAULT", fault}, {"ORRERY_TEST_CASE", plan}, {"ORRERY_STALL_SECONDS", "3"}});
  return run_ranks(ranks > 0 ? ranks : plan_case(plan).ranks, "FaultyRank.Trains", variables);
}

/// `codes` by rank; every rank that can still speak says `cause`, in one block.
void expect_end(const Ended& ended, const std::vector<int>& codes,
                const ::testing::Matcher<const std::string&>& cause) {
  EXPECT_EQ(ended.codes, codes);
  EXPECT_LT(ended.seconds, kStartSeconds + 10);
  for (std::size_t r = 0; r < ended.printed.size(); ++r) {
    if (codes[r] != 3) continue;
    EXPECT_THAT(ended.printed[r], cause) << "rank " << r;
    EXPECT_EQ(ended.printed[r].find("error["), ended.printed[r].rfind("error[")) << "one block";
  }
}

TEST(TransportFaults, AKilledRankIsMissed) {
  expect_end(train_with("1 ncclAllReduce 3 kill", "dp2", kPatient), {3, kKilled},
             AllOf(HasSubstr("rank 1 has ended or does not run"),
                   HasSubstr("missed at rank 0 (stage 0), step 0, layer "),
                   HasSubstr("operation 'all_reduce(gradient)'")));
}

TEST(TransportFaults, ThoseWhoMeetAtAKilledRankSaySo) {
  expect_end(train_with("0 group 5 kill", "pp4_1f1b", kPatient), {kKilled, 3, 3, 3},
             AnyOf(HasSubstr("whoever serves it has ended"), HasSubstr("the store at 127.0.0.1")));
}

TEST(TransportFaults, ALostMessageIsAStallOfItsReceiver) {
  expect_end(
      train_with("0 ncclSend 3 drop", "pp2_1f1b"), {3, 3},
      AllOf(HasSubstr("no rank moves on; rank 1 (stage 1), step 0, layer "),
            HasSubstr("micro-batch 3, operation '"), HasSubstr("has waited for other ranks for ")));
}

TEST(TransportFaults, ACallThatFailsIsEverybodysCause) {
  expect_end(train_with("1 ncclAllReduce 2 fail", "dp2"), {3, 3},
             AllOf(HasSubstr("all_reduce: internal error (injected)"),
                   HasSubstr("on rank 1 (stage 0), step 0, layer ")));
}

TEST(TransportFaults, AnAsynchronousErrorIsSeen) {
  expect_end(train_with("1 group 3 async", "pp2_interleaved"), {3, 3},
             AllOf(HasSubstr("NCCL failed: remote process exited"),
                   HasSubstr("at rank 1 (stage 1), step 0, layer ")));
}

TEST(TransportFaults, AHostThatStandsStillIsNamed) {
  expect_end(train_with("1 ncclAllReduce 2 stop", "dp2"), {3, 3},
             AllOf(HasSubstr("no rank moves on; rank 1 (stage 0), step 0, layer ")));
}

TEST(TransportFaults, CudasCodesAreErrors) {
  expect_end(train_with("0 cudaEventRecord 9 fail", "pp2_1f1b"), {3, 3},
             AllOf(HasSubstr("cudaEventRecord: unspecified launch failure"),
                   HasSubstr("on rank 0 (stage 0), step 0, layer ")));
}

TEST(TransportFaults, MemoryThatIsShortBeforeTheFirstStepShowsThePlans) {
  // The communicators of exchanges are there before the first one.
  expect_end(train_with("1 ncclCommSplit 2 oom", "pp2_1f1b"), {3, 3},
             AllOf(HasSubstr("ncclCommSplit: unhandled cuda error (out of memory)"),
                   HasSubstr("the plan states a peak of"), HasSubstr("parameter"),
                   HasSubstr("optimizer"), Not(HasSubstr("micro-batch"))));
  expect_end(
      run_ranks(2, "FaultyRank.WantsTooMuch"), {3, 3},
      AllOf(HasSubstr("out of memory"), HasSubstr("the plan states a peak of"), HasSubstr("TiB")));
}

TEST(TransportFaults, ARankThatNeverComesIsNotAwaitedForEver) {
  expect_end(train_with("", "dp2", {{"WORLD_SIZE", "2"}}, 1), {3},
             HasSubstr("no rank moves on; rank 0, between steps, at a barrier of all ranks"));
}

// torchrun's agent keeps its store over a restart: what the first attempt left there, its failure
// first of all, is nothing to the second.
TEST(TransportFaults, ARestartOnTheSameStoreTrains) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  c10d::TCPStore agent("127.0.0.1", options);
  Variables variables{{"MASTER_PORT", std::to_string(agent.getPort())},
                      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                      {"TORCHELASTIC_RUN_ID", "job"},
                      {"TORCHELASTIC_RESTART_COUNT", "0"}};
  expect_end(train_with("1 ncclAllReduce 3 fail", "dp2", variables), {3, 3},
             HasSubstr("internal error"));
  variables["TORCHELASTIC_RESTART_COUNT"] = "1";
  expect_success(train_with("", "dp2", variables));
}

RunOptions over_nccl() {
  RunOptions options = training();
  options.steps = 4;
  options.backend = "nccl";
  return options;
}

RANK_BODY(FaultyRank, Trains) {
  const auto report =
      run(lowered(plan_case(std::getenv("ORRERY_TEST_CASE")), small_model("gpt2")), over_nccl());
  if (report) return;
  fmt::print(stderr, "{}\n", base::to_string(report.error()));  // as the command line does
  std::_Exit(base::exit_code(report.error()));
}

RANK_BODY(FaultyRank, WantsTooMuch) {
  model::ModelSpec model = small_model("gpt2");
  model.vocab = std::int64_t{1} << 36;
  const auto report = run(lowered(plan_case("dp2"), model), over_nccl());
  FAIL() << "that much memory is not there";
}

}  // namespace
}  // namespace orrery::executor::testing
