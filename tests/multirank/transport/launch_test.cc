// NCCL ranks find each other whoever starts them, without variables made by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "executor/launch/launch.h"
#include "executor/runtime/run.h"
#include "ranks_fixture.h"
#include "tests/multirank/executor/plan_cases_fixture.h"
#include "tests/support/rank_body.h"
#include "tests/support/scratch_folder.h"

namespace orrery::executor::testing {
namespace {

const std::vector<std::string> kTrains = tests::rank_arguments("LaunchedRank.Trains");

class NcclLaunch : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("ORRERY_FAKE_RINGS", scratch_.path().c_str(), 1);
    // in containers, as the local launcher has it
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  }
  void TearDown() override { ::unsetenv("ORRERY_FAKE_RINGS"); }

 private:
  tests::ScratchFolder scratch_;
};

TEST_F(NcclLaunch, EightRanksOfThisHostStart) {
  const auto code = launch_local(8, kTrains);
  ASSERT_TRUE(code) << base::to_string(code.error());
  EXPECT_EQ(*code, 0);
}

TEST_F(NcclLaunch, TheLauncherNamesOneCause) {
  ::setenv("ORRERY_FAKE_FAULT", "5 ncclAllReduce 2 fail", 1);
  ::testing::internal::CaptureStderr();
  const auto code = launch_local(8, kTrains);
  const std::string errors = ::testing::internal::GetCapturedStderr();
  ::unsetenv("ORRERY_FAKE_FAULT");
  ASSERT_TRUE(code) << base::to_string(code.error());
  EXPECT_EQ(*code, 3);
  EXPECT_THAT(errors, ::testing::HasSubstr("all_reduce: internal error (injected)"));
  EXPECT_THAT(errors, ::testing::HasSubstr("on rank 5 "));
  EXPECT_EQ(errors.find("error["), errors.rfind("error[")) << "one block:\n" << errors;
}

TEST_F(NcclLaunch, RanksOfMpirunAskMpi) {
  std::string line =
      "mpirun -np 2 --oversubscribe " + std::filesystem::read_symlink("/proc/self/exe").string();
  for (const std::string& word : kTrains) line += " " + word;
  EXPECT_EQ(std::system(line.c_str()), 0);
}

TEST_F(NcclLaunch, RanksOfSlurmMeetAtTheStepsFirstHost) {
  expect_success(run_ranks(2, "LaunchedRank.Trains",
                           {{"SLURM_NTASKS", "2"},
                            {"SLURM_JOB_ID", std::to_string(::getpid())},
                            {"SLURM_STEP_NODELIST", "localhost"}}));
}

RANK_BODY(LaunchedRank, Trains) {
  RunOptions options = training();
  options.steps = 2;
  options.backend = "nccl";
  const bool pair = detect_launch()->world_size == 2;
  const auto report =
      run(lowered(plan_case(pair ? "dp2" : "tp2_pp2_dp2_zero3_recompute"), small_model("gpt2")),
          options);
  ASSERT_TRUE(report) << base::to_string(report.error());
}

}  // namespace
}  // namespace orrery::executor::testing
