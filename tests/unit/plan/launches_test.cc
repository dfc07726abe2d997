// Launches of a step on a device, counted from the unrolled Program: what a block, the head with
// its loss and an update take.
#include "plan/program/launches.h"

#include <gtest/gtest.h>

#include "model/launches.h"
#include "plan/lowering/lower.h"
#include "plan/program/expand.h"

namespace orrery::plan {
namespace {

using model::SegmentKind;

struct Launches {
  std::int64_t block = 0, head = 0, updates = 0, units = 0;
};

/// Of one micro-batch; a block is what layer 0 does but for what it does once a step: zero its
/// gradients, update.
Launches launches_of(const char* name, model::Precision precision) {
  const model::ModelSpec model = *model::find_model(name);
  const Program program =
      *lower(*uniform_plan(model, "local", 1,
                           {.micro_batch = 4, .global_batch = 4, .precision = precision}),
             model);
  Launches sum;
  std::int64_t all = 0;
  for_each_op(program, program.classes[0], [&](const OpInstance& o) {
    if (o.op->kind != OpKind::kCompute) return;
    const model::SegmentShape& s = program.segments[o.op->segment];
    const int count = model::launches(s, o.op->phase);
    all += count;
    const bool loss = s.kind == SegmentKind::kLossMax || s.kind == SegmentKind::kLossSum ||
                      s.kind == SegmentKind::kLoss || s.kind == SegmentKind::kLogits;
    if (s.kind == SegmentKind::kAdamW) {
      sum.updates += count;
      ++sum.units;
    } else if (loss || o.op->name.starts_with("final")) {
      sum.head += count;
    } else if (program.templates[o.source].name.starts_with("block") && o.layer == 0 &&
               s.kind != SegmentKind::kZeroGradient) {
      sum.block += count;
    }
  });
  EXPECT_EQ(all, launches(program, program.classes[0]));
  return sum;
}

TEST(Launches, OfABlockAreThoseOfItsSegments) {
  // Forward 10. Backward: residuals 2, products 2, 3, 2, 3, activation 1, norms 4, attention 6, in
  // bf16 4.
  EXPECT_EQ(launches_of("gpt2", model::Precision::kFloat32).block, 10 + 2 + 10 + 1 + 4 + 6);
  EXPECT_EQ(launches_of("gpt2", model::Precision::kBFloat16).block, 10 + 2 + 10 + 1 + 4 + 4);
}

TEST(Launches, OfHeadLossAndUpdatesAreFewHoweverLargeTheLogits) {
  for (const char* name : {"gpt2", "llama-3-8b"}) {
    const Launches l = launches_of(name, model::Precision::kBFloat16);
    EXPECT_GT(l.head, 0) << name;
    EXPECT_LE(l.head, 40) << name;
    EXPECT_EQ(l.updates, l.units) << "one a unit of " << name;
  }
}

// Counted by a profiler on an H200 (docs/results/record_h200.md).
TEST(Launches, AreThoseThatAProfilerCounts) {
  model::ModelSpec model = *model::find_model("gpt2-xl");
  model.layers = 2;
  UniformOptions options{
      .micro_batch = 2, .global_batch = 4, .precision = model::Precision::kBFloat16};
  options.sequence = 1024;
  const Program program = *lower(*uniform_plan(model, "local", 1, options), model);
  EXPECT_EQ(launches(program, program.classes[0]), 171);
}

}  // namespace
}  // namespace orrery::plan
