// Launches of a step on a device, counted from the unrolled Program: what a block, the head with
// its loss and an update take.
#include "plan/program/launches.h"

#include <gtest/gtest.h>

#include "model/launches.h"
#include "plan/lowering/lower.h"
#include "plan/program/expand.h"
#include "plan/program/stream_refs.h"

namespace orrery::plan {
namespace {

using model::SegmentKind;

struct Counts {
  std::int64_t block = 0, head = 0, updates = 0, units = 0;
};

model::ModelSpec model_of(const char* name, int layers) {
  model::ModelSpec model = *model::find_model(name);
  if (layers > 0) model.layers = layers;
  return model;
}

/// Of one micro-batch; a block is what layer 1 does but for what it does once a step: zero its
/// gradients, update.
Counts counts_of(const char* name, model::Precision precision, int layers = 0) {
  const model::ModelSpec model = model_of(name, layers);
  const Program program =
      *lower(*uniform_plan(model, "local", 1,
                           {.micro_batch = 4, .global_batch = 4, .precision = precision}),
             model);
  const Expansion expansion = expand(program, program.classes[0], StreamRefs(program));
  const Launches all = launches(program, expansion);
  Counts sum;
  std::int64_t counted = 0;
  for (std::size_t i = 0; i < expansion.ops.size(); ++i) {
    const OpInstance& o = expansion.ops[i];
    if (o.op->kind != OpKind::kCompute) continue;
    const model::SegmentShape& s = program.segments[o.op->segment];
    if (s.kind == SegmentKind::kAdamW) ++sum.units;
    if (all.joined[i] == Joined::kAll) continue;
    const int count = model::launches(s, o.op->phase) - (all.joined[i] == Joined::kBias ? 1 : 0);
    counted += count;
    const bool loss = s.kind == SegmentKind::kLossMax || s.kind == SegmentKind::kLossSum ||
                      s.kind == SegmentKind::kLoss || s.kind == SegmentKind::kLogits;
    if (s.kind == SegmentKind::kAdamW) {
      sum.updates += count;
    } else if (loss || o.op->name.starts_with("final")) {
      sum.head += count;
    } else if (program.templates[o.source].name.starts_with("block") && o.layer == 1 &&
               s.kind != SegmentKind::kZeroGradient) {
      sum.block += count;
    }
  }
  EXPECT_EQ(counted, all.count);
  EXPECT_EQ(counted, launch_count(program, program.classes[0]));
  return sum;
}

TEST(Launches, OfABlockAreThoseOfItsSegments) {
  // Forward 8: its norms with the sums before them. Backward: products 2, 2, 2, 2, activation,
  // norms 2 and attention 4 with the gradients of all biases.
  for (const auto precision : {model::Precision::kFloat32, model::Precision::kBFloat16})
    EXPECT_EQ(counts_of("gpt2", precision).block, 8 + 8 + 1 + 2 + 4);
  // Forward 9: heads are turned; backward once more.
  EXPECT_EQ(counts_of("llama-3-8b", model::Precision::kBFloat16).block, 9 + 8 + 1 + 2 + 5);
}

TEST(Launches, OfHeadLossAndUpdatesAreFewHoweverLargeTheLogitsOrDeepTheModel) {
  for (const char* name : {"gpt2", "llama-3-8b"}) {
    const Counts c = counts_of(name, model::Precision::kBFloat16);
    EXPECT_GT(c.head, 0) << name;
    EXPECT_LE(c.head, 40) << name;
  }
  for (const int layers : {6, 48, 126}) {
    const Counts c = counts_of("gpt2", model::Precision::kBFloat16, layers);
    EXPECT_GE(c.units, layers);
    EXPECT_LE(c.updates, 10) << c.units << " units";
  }
}

// Whatever waits for something is launched behind it.
TEST(Launches, NothingIsJoinedAcrossWhatItWaitsFor) {
  const model::ModelSpec model = model_of("gpt2", 4);
  UniformOptions options{.dp = 2,
                         .zero = 3,
                         .micro_batch = 1,
                         .global_batch = 4,
                         .precision = model::Precision::kBFloat16};
  const Program program = *lower(*uniform_plan(model, "local", 2, options), model);
  const Expansion expansion = expand(program, program.classes[0], StreamRefs(program));
  const Launches all = launches(program, expansion);
  int joined = 0;
  for (std::uint32_t i = 0; i < expansion.ops.size(); ++i) {
    if (all.joined[i] == Joined::kNo) {
      EXPECT_EQ(all.with[i], i);
      continue;
    }
    ++joined;
    EXPECT_LT(all.with[i], i);
    EXPECT_EQ(all.joined[all.with[i]], Joined::kNo) << "a launch begins with an operation";
    for (const std::uint32_t before : expansion.dependencies_of(i)) EXPECT_LT(before, all.with[i]);
  }
  EXPECT_GT(joined, 0);
}

std::int64_t launched_updates(const Plan& plan, const model::ModelSpec& model) {
  const Program program = *lower(plan, model);
  const Expansion expansion = expand(program, program.classes[0], StreamRefs(program));
  const Launches all = launches(program, expansion);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < expansion.ops.size(); ++i) {
    const Op& op = *expansion.ops[i].op;
    if (op.kind == OpKind::kCompute && program.segments[op.segment].kind == SegmentKind::kAdamW)
      count += all.joined[i] == Joined::kNo ? 1 : 0;
  }
  return count;
}

// 15 units, two a launch; where shards are summed over replicas once a step, each behind its sum.
TEST(Launches, AnUpdateThatWaitsForItsOwnSumIsLaunchedByItself) {
  const model::ModelSpec model = model_of("gpt2", 12);
  Plan plan =
      *uniform_plan(model, "local", 4, {.dp = 4, .zero = 3, .micro_batch = 1, .global_batch = 8});
  EXPECT_EQ(launched_updates(plan, model), 8);
  for (LayerStrategy* s : {&plan.vocabulary, &plan.stages[0].runs[0].strategy}) {
    s->shard = 2;
    s->grad_reduce = GradReduce::kMicroBatch;
  }
  EXPECT_EQ(launched_updates(plan, model), 15);
}

// A profiler counted 171 on an H200 (docs/results/record_h200.md) before operations were joined:
// of two blocks and two micro-batches those are the sums of norms' gradients (10), of biases (16)
// and before norms (8).
TEST(Launches, AreThoseThatAProfilerCountedLessWhatIsJoined) {
  UniformOptions options{
      .micro_batch = 2, .global_batch = 4, .precision = model::Precision::kBFloat16};
  options.sequence = 1024;
  const model::ModelSpec model = model_of("gpt2-xl", 2);
  const Program program = *lower(*uniform_plan(model, "local", 1, options), model);
  EXPECT_EQ(launch_count(program, program.classes[0]), 171 - 10 - 16 - 8);
}

}  // namespace
}  // namespace orrery::plan
