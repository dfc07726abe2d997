// Training on the GPU: the losses of the CPU, the memory of the Program, a timeline on the device's
// clock, one rank of a larger plan alone.
#include <ATen/ops/ones.h>

#include <cstdlib>

#include "cuda_fixture.h"
#include "executor/measure/calibrate.h"
#include "executor/runtime/run.h"
#include "executor/transport/communicator.h"
#include "model/spec.h"
#include "plan/lowering/lower.h"
#include "plan/program/memory.h"

namespace orrery::executor {
namespace {

using TrainingOnCuda = OnCuda;

plan::Program program_of(const char* name, const plan::UniformOptions& options) {
  const model::ModelSpec model = *model::find_model(name);
  return *plan::lower(*plan::uniform_plan(model, "local", 1, options), model);
}

RunReport trained(const plan::Program& program, const char* device, int steps,
                  const char* backend = "auto", bool timeline = false) {
  RunOptions options;
  options.steps = 1;
  options.warmup = steps - 1;
  options.device = device;
  options.backend = backend;
  options.timeline = timeline;
  base::Result<RunReport> report = run(program, options);
  EXPECT_TRUE(report) << base::to_string(report.error());
  return report ? *std::move(report) : RunReport{};
}

class Families : public OnCuda, public ::testing::WithParamInterface<const char*> {};

TEST_P(Families, LossesAreThoseOfTheCpu) {
  for (const plan::Recompute recompute : {plan::Recompute::kNone, plan::Recompute::kSelective,
                                          plan::Recompute::kOperator, plan::Recompute::kFull}) {
    const plan::Program program = program_of(GetParam(), {.recompute = recompute,
                                                          .micro_batch = 4,
                                                          .global_batch = 8,
                                                          .precision = model::Precision::kFloat32});
    const RunReport cpu = trained(program, "cpu", 10), cuda = trained(program, "cuda", 10);
    ASSERT_EQ(cpu.steps.size(), cuda.steps.size());
    for (std::size_t i = 0; i < cpu.steps.size(); ++i)
      EXPECT_NEAR(cuda.steps[i].loss / cpu.steps[i].loss, 1.0, 1e-5) << "step " << i;
    EXPECT_LT(cuda.steps.back().loss, cuda.steps.front().loss);
  }
}

TEST_P(Families, PeakMemoryIsTheProgramsOrATouchBelow) {
  for (const model::Precision precision :
       {model::Precision::kFloat32, model::Precision::kBFloat16}) {
    const plan::Program program =
        program_of(GetParam(), {.micro_batch = 8, .global_batch = 16, .precision = precision});
    const RunReport report = trained(program, "cuda", 2);
    const double stated =
        static_cast<double>(plan::static_memory(program, program.classes.front()).peak_bytes);
    ASSERT_EQ(report.peak_memory_bytes.size(), 1U);
    EXPECT_NEAR(static_cast<double>(report.peak_memory_bytes[0]), stated, 0.04 * stated);
  }
}
INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::Values("gpt2-tiny", "llama-tiny"),
                         [](const auto& family) { return std::string(family.param).substr(0, 4); });

TEST_F(TrainingOnCuda, Bf16Learns) {
  const plan::Program program =
      program_of("llama-tiny",
                 {.micro_batch = 4, .global_batch = 8, .precision = model::Precision::kBFloat16});
  const RunReport report = trained(program, "cuda", 30);
  EXPECT_LT(report.steps.back().loss, 0.9 * report.steps.front().loss);
}

TEST_F(TrainingOnCuda, SpansAreOnTheDevicesClock) {
  const plan::Program program = program_of(
      "llama-tiny", {.micro_batch = 4, .global_batch = 8, .precision = model::Precision::kFloat32});
  const RunReport report = trained(program, "cuda", 4, "auto", true);
  ASSERT_GT(report.timeline.spans.size(), 100U);
  std::int64_t busy = 0, before = 0;
  for (const plan::Span& s : report.timeline.spans) {
    EXPECT_GE(s.start_ps, before) << s.name;
    EXPECT_GE(s.duration_ps, 0) << s.name;
    before = s.start_ps + s.duration_ps;
    busy += s.duration_ps;
  }
  EXPECT_LE(static_cast<double>(before) * 1e-12, 1.05 * report.steps.back().seconds);
  EXPECT_GT(static_cast<double>(busy) * 1e-12, 0.3 * report.steps.back().seconds);
}

TEST_F(TrainingOnCuda, OneRankOfALargerPlanRunsAlone) {
  const plan::Program whole = program_of("llama-tiny", {.tp = 2,
                                                        .pp = 2,
                                                        .sequence_parallel = true,
                                                        .micro_batch = 2,
                                                        .global_batch = 8,
                                                        .precision = model::Precision::kBFloat16});
  const RunReport report = trained(whole, "cuda", 2, "stub");
  const double stated =
      static_cast<double>(plan::static_memory(whole, whole.classes.front()).peak_bytes);
  ASSERT_FALSE(report.peak_memory_bytes.empty());
  EXPECT_NEAR(static_cast<double>(report.peak_memory_bytes[0]), stated, 0.05 * stated);
}

TEST_F(TrainingOnCuda, NcclMovesDataInAGroupOfOne) {
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", "29517", 1);
  const auto communicator = make_communicator(
      "nccl", {.rank = 0, .world_size = 1, .local_rank = 0, .source = "test"}, 1, device_);
  if (!communicator && communicator.error().front().code == base::ErrorCode::kMissingFeature)
    GTEST_SKIP() << "no NCCL in this build";
  ASSERT_TRUE(communicator) << base::to_string(communicator.error());
  const std::vector<int> alone{0};
  const auto channel = (*communicator)->channel(alone, plan::Stream::kData);
  ASSERT_TRUE(channel) << base::to_string(channel.error());
  at::Tensor t = at::ones({1024}, at::TensorOptions().device(device_));
  EXPECT_TRUE((*communicator)->all_reduce(*channel, t, plan::Reduce::kSum));
  EXPECT_EQ(t.sum().item<double>(), 1024.0);
}

TEST_F(TrainingOnCuda, CalibrationMeasuresTheDevice) {
  CalibrateOptions options{.device = "cuda",
                           .dtype = "bf16",
                           .ranks = 1,
                           .budget_seconds = 15,
                           .focus = {*model::find_model("llama-tiny")},
                           .on_progress = {}};
  const auto calibrated = calibrate(options);
  ASSERT_TRUE(calibrated) << base::to_string(calibrated.error());
  const model::Profile* profile = &calibrated->profile;
  EXPECT_GT(profile->operators.size(), 60U);
  EXPECT_TRUE(profile->overlaps);
  EXPECT_NE(profile->device, "cpu");
  EXPECT_GT(profile->context_bytes, 100 << 20);
  const auto seconds = [&](std::int64_t width) {
    for (const model::OperatorPoint& p : profile->operators) {
      if (p.shape.kind == model::SegmentKind::kMlpOut && p.phase == model::Phase::kF &&
          p.shape.tokens == 16384 && p.shape.in == width && p.shape.out == width)
        return p.seconds_median;
    }
    return 0.0;
  };
  EXPECT_GT(seconds(8192), 8 * seconds(2048)) << "sixteen times the work";
}

}  // namespace
}  // namespace orrery::executor
