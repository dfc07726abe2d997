// A rank that dies takes the job with it within seconds, and one block says which and where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>

#include "plan_cases_fixture.h"
#include "tests/support/rank_body.h"

namespace orrery::executor::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  int code = -1;
  std::string errors;
  double seconds = 0;
};

Ended run_until_failure(const std::string& test) {
  ::testing::internal::CaptureStderr();
  const auto begin = std::chrono::steady_clock::now();
  const auto code = launch_local(2, tests::rank_arguments("FailingRank." + test));
  Ended ended{
      .code = code ? *code : -1,
      .errors = {},
      .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
  ended.errors = ::testing::internal::GetCapturedStderr();
  return ended;
}

TEST(Failure, AKilledRankEndsTheJobAndIsNamed) {
  const Ended ended = run_until_failure("IsKilled");
  EXPECT_EQ(ended.code, 3);
  EXPECT_LT(ended.seconds, 15) << "start-up and ten seconds";
  EXPECT_THAT(ended.errors, HasSubstr("rank 1 was killed by signal 9"));
  EXPECT_THAT(ended.errors, HasSubstr("step "));
  EXPECT_THAT(ended.errors, HasSubstr("operation '"));
  EXPECT_THAT(ended.errors, Not(HasSubstr("mpirun")));
  EXPECT_EQ(ended.errors.find("error["), ended.errors.rfind("error[")) << "one block:\n"
                                                                       << ended.errors;
}

TEST(Failure, TooFewRanksIsAnInputError) {
  const Ended ended = run_until_failure("HasTooFewRanks");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.errors, HasSubstr("the plan is for 4 ranks, and 2 were started"));
  EXPECT_EQ(ended.errors.find("error["), ended.errors.rfind("error[")) << "one block:\n"
                                                                       << ended.errors;
}

TEST(Failure, RanksWithDifferentProgramsDoNotStart) {
  const Ended ended = run_until_failure("HasAnotherProgram");
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.errors, HasSubstr("runs Program"));
}

int own_rank() { return detect_launch()->rank; }

RANK_BODY(FailingRank, IsKilled) {
  RunOptions options = training();
  options.backend = "mpi";
  options.steps = 100'000;
  if (own_rank() == 1) {
    // Dies somewhere in the middle of training.
    struct sigaction action {};
    action.sa_handler = [](int) { ::kill(::getpid(), SIGKILL); };
    ::sigaction(SIGALRM, &action, nullptr);
    ::alarm(3);
  }
  const auto report = run(lowered(plan_case("dp2"), small_model("gpt2")), options);
  FAIL() << "the job goes on";
}

RANK_BODY(FailingRank, HasTooFewRanks) {
  RunOptions options = training();
  options.backend = "mpi";
  const auto report = run(lowered(plan_case("dp4"), small_model("gpt2")), options);
  FAIL() << "the launcher ends the ranks";
}

RANK_BODY(FailingRank, HasAnotherProgram) {
  RunOptions options = training();
  options.backend = "mpi";
  const auto report =
      run(lowered(plan_case(own_rank() == 0 ? "dp2" : "tp2"), small_model("gpt2")), options);
  FAIL() << "the launcher ends the ranks";
}

}  // namespace
}  // namespace orrery::executor::testing
