#include "executor/launch/rendezvous.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "executor/state/device.h"

namespace orrery::executor {
namespace {

class Rendezvouses : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_JOB_ID",
          "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RUN_ID",
          "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"})
      ::unsetenv(name);
  }
  static Launch launch(const char* source) {
    return {.rank = 0, .world_size = 2, .local_rank = 0, .source = source};
  }
};

TEST_F(Rendezvouses, FirstHostOfSlurmsNotation) {
  EXPECT_EQ(first_host("gpu7"), "gpu7");
  EXPECT_EQ(first_host("gpu7,gpu9"), "gpu7");
  EXPECT_EQ(first_host("gpu[07-09,12],cpu1"), "gpu07");
  EXPECT_EQ(first_host("gpu[12]"), "gpu12");
}

TEST_F(Rendezvouses, MasterVariablesComeFirst) {
  ::setenv("SLURM_JOB_NODELIST", "a[1-2]", 1);
  ::setenv("MASTER_ADDR", "b", 1);
  ::setenv("MASTER_PORT", "1234", 1);
  const auto found = find_rendezvous(launch("slurm"));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->host, "b");
  EXPECT_EQ(found->port, 1234);
  ::setenv("MASTER_PORT", "http", 1);
  EXPECT_EQ(find_rendezvous(launch("torchrun")).error().front().code, base::ErrorCode::kBadValue);
}

TEST_F(Rendezvouses, SlurmStatesHostAndPort) {
  ::setenv("SLURM_JOB_NODELIST", "a[1-2]", 1);
  ::setenv("SLURM_JOB_ID", "4711", 1);
  const auto found = find_rendezvous(launch("slurm")), same = find_rendezvous(launch("pmi"));
  ASSERT_TRUE(found);
  ASSERT_TRUE(same);
  EXPECT_EQ(found->host, "a1");
  EXPECT_EQ(found->port, 20'000 + 4711 * 16 % 20'000);
  EXPECT_EQ(same->port, found->port);
  ::setenv("SLURM_JOB_ID", "4712", 1);
  EXPECT_NE(find_rendezvous(launch("slurm"))->port, found->port);
}

TEST_F(Rendezvouses, NothingStatedIsADiagnostic) {
  EXPECT_FALSE(has_rendezvous(launch("mpirun")));
  const auto found = find_rendezvous(launch("torchrun"));
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().front().code, base::ErrorCode::kMissingKey);
  EXPECT_FALSE(found.error().front().hint.empty());
}

TEST_F(Rendezvouses, EveryRestartIsAnAttemptOfItsOwn) {
  ::setenv("MASTER_ADDR", "b", 1);
  ::setenv("MASTER_PORT", "1234", 1);
  ::setenv("TORCHELASTIC_RUN_ID", "job", 1);
  ::setenv("TORCHELASTIC_RESTART_COUNT", "0", 1);
  const std::string first = find_rendezvous(launch("torchrun"))->attempt;
  ::setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
  EXPECT_NE(find_rendezvous(launch("torchrun"))->attempt, first);
}

TEST_F(Rendezvouses, ARankThatSeesOneDeviceTakesIt) {
  EXPECT_EQ(device_index(3, 8).value(), 3);
  EXPECT_EQ(device_index(3, 1).value(), 0);
  EXPECT_EQ(device_index(3, 2).error().front().code, base::ErrorCode::kDevice);
  EXPECT_EQ(device_index(0, 0).error().front().code, base::ErrorCode::kDevice);
}

}  // namespace
}  // namespace orrery::executor
