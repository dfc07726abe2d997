// The GPU transport trains every schedule and the other dimensions like one process, computing and
// communicating side by side as the Program allows.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/json.h"
#include "base/numbers.h"
#include "plan/program/memory.h"
#include "ranks_fixture.h"
#include "tests/multirank/executor/plan_cases_fixture.h"
#include "tests/support/json_file.h"
#include "tests/support/rank_body.h"
#include "tests/support/scratch_folder.h"

namespace orrery::executor::testing {
namespace {

constexpr int kSteps = 4;

RunOptions over_nccl() {
  RunOptions options = training();
  options.steps = kSteps;
  options.joins = true;  // as on a device
  options.arena = true;
  options.backend = "nccl";
  return options;
}

/// Losses on the "gpt2" model over the stand-ins.
std::vector<double> losses_of(const std::string& name, const Variables& variables = {}) {
  const tests::ScratchFolder scratch;
  const std::filesystem::path out = scratch.path() / "losses.json";
  Variables all{{"ORRERY_TEST_CASE", name}, {"ORRERY_TEST_OUT", out.string()}};
  all.insert(variables.begin(), variables.end());
  expect_success(run_ranks(plan_case(name).ranks, "NcclRank.Trains", all));
  const auto json = tests::read_json(out);
  return json ? json->get<std::vector<double>>() : std::vector<double>{};
}

std::vector<double> alone() {
  std::vector<double> losses = train_alone(small_model("gpt2")).losses;
  losses.resize(kSteps);
  return losses;
}

class NcclTraining : public ::testing::TestWithParam<std::string> {};

TEST_P(NcclTraining, LossesEqualOneProcessAndBytesTheProgram) {
  EXPECT_LE(largest_relative_difference(losses_of(GetParam()), alone()), 1e-6);
}
// Every schedule, every kind of communication of the Program, two to eight ranks.
INSTANTIATE_TEST_SUITE_P(Plans, NcclTraining,
                         ::testing::Values("pp2_gpipe", "pp2_1f1b", "pp2_interleaved", "pp2_zb_h1",
                                           "pp2_dualpipe_v", "pp4_1f1b",
                                           "pp2_dp2_zero2_interleaved", "dp2", "dp4_zero3_shard2",
                                           "tp2_sp_pieces2", "cp4_ring", "cp2_ulysses_between_dp4",
                                           "mixed_tp2_then_dp4_zero3",
                                           "partition_between_conventional_pp2",
                                           "tp2_pp2_dp2_zero3_recompute", "dp2_zero3_offload",
                                           "pp2_interleaved_offload"),
                         [](const auto& tested) { return tested.param; });

TEST(NcclTraining, ADelayOfOneOperationChangesNoBit) {
  const Variables late{{"ORRERY_FAKE_FAULT", "1 group 3 delay 500"}};
  EXPECT_EQ(losses_of("pp2_interleaved", late), losses_of("pp2_interleaved"));
}

// The last block's gradients are reduced while the backward of the other blocks goes on; what needs
// them waits.
TEST(NcclTraining, ComputeRunsBesideACollectiveThatItDoesNotNeed) {
  expect_success(run_ranks(2, "NcclRank.ComputesBesideAllReduce",
                           {{"ORRERY_FAKE_FAULT", "1 ncclAllReduce 1 delay 2000"}}));
}

RANK_BODY(NcclRank, ComputesBesideAllReduce) {
  RunOptions options = over_nccl();
  options.steps = 1;
  options.timeline = true;
  const auto report = run(lowered(plan_case("dp2"), small_model("gpt2")), options);
  ASSERT_TRUE(report) << base::to_string(report.error());
  if (detect_launch()->rank != 0) return;
  constexpr std::int64_t kSecond = 1'000'000'000'000;
  std::int64_t reduced = -1;
  int beside = 0, after = 0;
  for (const plan::Span& s : report->timeline.spans) {
    if (s.rank != 0) continue;
    if (s.category == "all_reduce" && reduced < 0) reduced = s.start_ps;
    if (reduced < 0 || s.stream != plan::Stream::kCompute) continue;
    (s.start_ps - reduced < kSecond ? beside : after) += 1;
    if (s.category == "adamw") {
      EXPECT_GT(s.start_ps - reduced, kSecond);
    }
  }
  EXPECT_GT(beside, 20) << "of the blocks before";
  EXPECT_GT(after, 0) << "updates";
}

RANK_BODY(NcclRank, Trains) {
  const plan::Program program =
      lowered(plan_case(std::getenv("ORRERY_TEST_CASE")), small_model("gpt2"));
  const base::Result<RunReport> report = run(program, over_nccl());
  ASSERT_TRUE(report) << base::to_string(report.error());
  if (detect_launch()->rank != 0) return;
  // Tensors live as long as the Program says, and those under way until they are seen to be over.
  for (std::size_t stage = 0; stage < program.classes.size(); ++stage) {
    const double stated = real(plan::static_memory(program, program.classes[stage]).peak_bytes);
    EXPECT_NEAR(real(report->peak_memory_bytes[stage]) / stated, 1, 0.1) << "stage " << stage;
  }
  std::vector<double> losses;
  for (const StepResult& s : report->steps) losses.push_back(s.loss);
  ASSERT_TRUE(base::write_json(std::getenv("ORRERY_TEST_OUT"), base::Json(losses)));
}

}  // namespace
}  // namespace orrery::executor::testing
