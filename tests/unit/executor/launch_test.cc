#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "executor/launch/board.h"
#include "executor/runtime/run.h"
#include "executor/state/device.h"
#include "executor/transport/communicator.h"
#include "tests/support/scratch_folder.h"

namespace orrery::executor {
namespace {

class DetectLaunch : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "RANK",
          "WORLD_SIZE", "LOCAL_RANK", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "SLURM_NTASKS",
          "SLURM_LOCALID"}) {
      ::unsetenv(name);
    }
  }
};

TEST_F(DetectLaunch, NothingSetIsOneRankAlone) {
  const auto launch = detect_launch();
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->world_size, 1);
  EXPECT_EQ(launch->source, "none");
}

TEST_F(DetectLaunch, ReadsTorchrunAndSlurm) {
  ::setenv("SLURM_PROCID", "5", 1);
  ::setenv("SLURM_NTASKS", "8", 1);
  ::setenv("SLURM_LOCALID", "1", 1);
  auto launch = detect_launch();
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->rank, 5);
  EXPECT_EQ(launch->local_rank, 1);
  ::setenv("RANK", "2", 1);
  ::setenv("WORLD_SIZE", "4", 1);
  launch = detect_launch();
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->source, "torchrun");
  EXPECT_EQ(launch->rank, 2);
  EXPECT_EQ(launch->world_size, 4);
}

TEST_F(DetectLaunch, HalfAnEnvironmentIsADiagnostic) {
  ::setenv("RANK", "2", 1);
  EXPECT_EQ(detect_launch().error().front().code, base::ErrorCode::kMissingKey);
  ::setenv("WORLD_SIZE", "two", 1);
  EXPECT_EQ(detect_launch().error().front().code, base::ErrorCode::kBadValue);
  ::setenv("WORLD_SIZE", "2", 1);
  EXPECT_EQ(detect_launch().error().front().code, base::ErrorCode::kInconsistent);
}

TEST(Backends, UnknownNamesAreDiagnostics) {
  const auto backend = make_communicator("mpl", {}, 1);
  ASSERT_FALSE(backend);
  EXPECT_THAT(backend.error().front().hint, ::testing::HasSubstr("mpi"));
  EXPECT_EQ(resolve_device("gpu", "auto").error().front().code, base::ErrorCode::kBadValue);
  EXPECT_EQ(
      resolve_backend("auto", "cpu", {.rank = 0, .world_size = 1, .local_rank = 0, .source = ""}),
      "self");
  EXPECT_EQ(
      resolve_backend("auto", "cpu", {.rank = 0, .world_size = 2, .local_rank = 0, .source = ""}),
      "mpi");
}

TEST(Board, KeepsTheLastOperationAndTheFirstFailure) {
  const tests::ScratchFolder scratch;
  const std::string folder = scratch.path().string();
  ::setenv(kBoardVariable, folder.c_str(), 1);
  {
    Board board = Board::attach(3);
    ASSERT_TRUE(board.attached());
    board.stage(1);
    board.operation(4, 2, 1, "qkv");
    board.fail({base::make_error(base::ErrorCode::kCollective, "first")});
    board.fail({base::make_error(base::ErrorCode::kCollective, "second")});
  }
  ::unsetenv(kBoardVariable);
  const auto progress = read_progress(folder, 3);
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->step, 4);
  EXPECT_STREQ(progress->operation, "qkv");
  const auto failure = read_failure(folder);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->exit_code, 3);
  EXPECT_THAT(failure->text, ::testing::HasSubstr("first"));
}

}  // namespace
}  // namespace orrery::executor
