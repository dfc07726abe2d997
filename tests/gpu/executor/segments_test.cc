// Every segment phase that training uses, on the same operands, gives on the GPU what it gives on
// the CPU.
#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>

#include <set>

#include "base/json.h"
#include "cuda_fixture.h"
#include "executor/measure/microbench.h"
#include "model/spec.h"
#include "plan/lowering/lower.h"

namespace orrery::executor {
namespace {

using model::SegmentKind;

Operands moved(const Operands& o, c10::Device device) {
  Operands there = o;
  for (auto* list : {&there.reads, &there.updates, &there.weights, &there.gradients}) {
    for (at::Tensor& t : *list)
      t = t.to(t.options().device(device), /*non_blocking=*/false, /*copy=*/true);
  }
  for (Output& out : there.writes) out.device = device;
  return there;
}

void run_here(const Bench& bench, Operands& operands) {
  const c10::InferenceMode no_autograd;
  RotaryTables rotary;
  SegmentContext context;
  context.unit = &bench.unit;
  context.rotary = &rotary;
  context.loss_scale = 1e-3;
  const auto done = run_segment(bench.shape, bench.phase, operands, context);
  ASSERT_TRUE(done) << base::to_string(done.error());
}

/// `tolerance`: of the largest element; that of bf16 is a few roundings of either side.
void expect_equal(const at::Tensor& cpu, const at::Tensor& cuda, double tolerance,
                  const std::string& what) {
  EXPECT_EQ(cpu.scalar_type(), cuda.scalar_type()) << what;
  const at::Tensor there = cuda.cpu();
  if (!cpu.is_floating_point()) {
    EXPECT_TRUE(cpu.equal(there)) << what;
    return;
  }
  const double scale = std::max(cpu.abs().max().item<double>(), 1e-6);
  const double worst = (cpu.to(at::kDouble) - there.to(at::kDouble)).abs().max().item<double>();
  EXPECT_LE(worst, tolerance * scale) << what << ": " << worst << " of " << scale;
}

struct Case {
  model::Precision precision;
  double tolerance;
};

/// Runs every segment phase of the Program that `seen` has not, here and there.
void compare_segments(const plan::Program& program, c10::Device device, double tolerance,
                      std::set<std::string>& seen) {
  for (const plan::Template& t : program.templates) {
    for (const plan::Op& op : t.ops) {
      if (op.kind != plan::OpKind::kCompute) continue;
      const model::SegmentShape& s = program.segments[op.segment];
      if (s.kind == SegmentKind::kLoadTokens || s.kind == SegmentKind::kLoadTargets) continue;
      const std::string what =
          fmt::format("{} {} {} of {}", model::to_string(s.kind), model::to_string(op.phase),
                      model::to_json(s).dump(), program.spec.name);
      if (!seen.insert(what).second) continue;
      const Bench bench = bench_of(program, op, at::kCPU);
      Operands here = moved(bench.operands, at::kCPU), there = moved(bench.operands, device);
      run_here(bench, here);
      run_here(bench, there);
      for (std::size_t i = 0; i < here.writes.size(); ++i)
        expect_equal(here.writes[i].tensor, there.writes[i].tensor, tolerance, what + ", output");
      for (std::size_t i = 0; i < here.updates.size(); ++i)
        expect_equal(here.updates[i], there.updates[i], tolerance, what + ", update");
      for (std::size_t i = 0; i < here.gradients.size(); ++i)
        expect_equal(here.gradients[i], there.gradients[i], tolerance, what + ", gradient");
    }
  }
}

class SegmentsOnCuda : public OnCuda, public ::testing::WithParamInterface<Case> {};

TEST_P(SegmentsOnCuda, GiveWhatTheyGiveOnTheCpu) {
  at::manual_seed(7);
  std::set<std::string> seen;
  for (const char* name : {"gpt2-tiny", "llama-tiny"}) {
    const model::ModelSpec model = *model::find_model(name);
    for (const int tp : {1, 2}) {
      for (const bool sequence_parallel : {false, true}) {
        const plan::UniformOptions o{.tp = tp,
                                     .sequence_parallel = sequence_parallel && tp > 1,
                                     .micro_batch = 2,
                                     .global_batch = 4,
                                     .precision = GetParam().precision};
        const plan::Program program =
            *plan::lower(*plan::uniform_plan(model, "local", 1, o), model);
        compare_segments(program, device_, GetParam().tolerance, seen);
      }
    }
  }
  EXPECT_GT(seen.size(), 60U);
}
INSTANTIATE_TEST_SUITE_P(Precisions, SegmentsOnCuda,
                         ::testing::Values(Case{model::Precision::kFloat32, 2e-5},
                                           Case{model::Precision::kBFloat16, 2e-2}),
                         [](const auto& c) {
                           return c.param.precision == model::Precision::kFloat32 ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace orrery::executor
