// Split backward: which products run apart, what lives until they do, and chunks of interleaved
// stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/check/check.h"
#include "plan/lowering/lower.h"
#include "plan/program/expand.h"
#include "plan/program/memory.h"

namespace orrery::plan {
namespace {

using testing::ElementsAre;

model::ModelSpec llama() { return model::find_model("llama-tiny").value(); }

LayerTemplates block(bool split, LayerStrategy s = {}) {
  LayerContext c;
  c.precision = model::Precision::kFloat32;
  c.sequence = 64;
  c.micro_batch_sequences = 4;
  c.micro_batches = 4;
  c.global_batch = 16;
  c.split_backward = split;
  return lower_block(llama(), s, c);
}
std::vector<std::string> phases(const LayerTemplates& t, TemplateId id) {
  std::vector<std::string> all;
  for (const Op& op : t.program.templates[id].ops)
    all.push_back(op.name + (op.kind == OpKind::kCompute
                                 ? " " + std::string(model::to_string(op.phase))
                                 : ""));
  return all;
}

TEST(SplitBackward, ProductsRunTheirWeightGradientsApart) {
  const LayerTemplates t = block(true);
  EXPECT_THAT(phases(t, t.backward),
              ElementsAre("mlp_out B", "activation B", "mlp_in B", "norm2 BG", "projection B",
                          "attention B", "qkv B", "norm1 BG"));
  EXPECT_THAT(phases(t, t.weight), ElementsAre("mlp_out G", "mlp_in G", "projection G", "qkv G"));
  EXPECT_FALSE(block(false).weight.valid());
}

// a, o, c, g (inputs) and dx, du, dy, dqkv (gradients of outputs) wait; all else dies in the
// backward as it does unsplit.
TEST(SplitBackward, KeepsOperandsOfWeightGradientsUntilTheLastReader) {
  const LayerTemplates t = block(true), whole = block(false);
  std::int64_t kept = 0;
  std::vector<std::string> names;
  for (const Op& op : t.program.templates[t.weight].ops)
    for (const BufferRef& r : op.frees) {
      kept += t.program.buffers[r.buffer].bytes();
      names.push_back(
          t.program.buffers[r.buffer].name.substr(0, t.program.buffers[r.buffer].name.find(' ')));
    }
  EXPECT_THAT(names, testing::UnorderedElementsAre("a", "o", "c", "g", "dx", "du", "dy", "dqkv"));
  const std::int64_t backward = template_memory(t.program, t.backward).delta_bytes,
                     weight = template_memory(t.program, t.weight).delta_bytes;
  EXPECT_EQ(weight, -kept);
  EXPECT_EQ(backward + weight, template_memory(whole.program, whole.backward).delta_bytes);
}

TEST(SplitBackward, RecomputationAndGathersStayInTheBackward) {
  const LayerTemplates t = block(
      true,
      {.tp = 2, .dp = 2, .zero = 3, .sequence_parallel = true, .recompute = Recompute::kFull});
  EXPECT_THAT(phases(t, t.weight), ElementsAre("mlp_out G", "mlp_in G", "projection G", "qkv G"));
  for (const Op& op : t.program.templates[t.weight].ops)
    EXPECT_FALSE(op.weights.has_value()) << op.name;
}

Plan plan_of(const model::ModelSpec& m, UniformOptions o) {
  o.sequence = 64;
  o.micro_batch = 1;
  return uniform_plan(m, "test", 1, o).value();
}

TEST(LowerZeroBubble, UpdatesComeAfterTheLastWeightGradient) {
  const model::ModelSpec m = llama();
  const Program p = lower(plan_of(m, {.pp = 2,
                                      .dp = 2,
                                      .zero = 1,
                                      .schedule = Schedule::kZeroBubbleH1,
                                      .global_batch = 8}),
                          m)
                        .value();
  EXPECT_TRUE(check(p).empty());
  for (const RankClass& c : p.classes) {
    std::size_t last_weight = 0, first_update = 0, i = 0, weights = 0;
    for (const OpInstance& o : unroll(p, c)) {
      ++i;
      if (o.op->phase == Phase::kG) {
        last_weight = i;
        ++weights;
      }
      if (first_update == 0 && o.op->name == "adamw") first_update = i;
    }
    // four products, four micro-batches
    EXPECT_EQ(weights, static_cast<std::size_t>(m.layers / 2 * 4 * 4));
    EXPECT_LT(last_weight, first_update);
  }
}

// Beside what 1F1B holds, a rank keeps operands of the weight gradients of at most lag + 1 = rank +
// 1 micro-batches.
TEST(LowerZeroBubble, HoldsWhatOneForwardOneBackwardHoldsAndTheKeptOperands) {
  const model::ModelSpec m = llama();
  UniformOptions o{.pp = 2, .global_batch = 8};
  const Program plain = lower(plan_of(m, o), m).value();
  o.schedule = Schedule::kZeroBubbleH1;
  const Program zero_bubble = lower(plan_of(m, o), m).value();
  LayerContext c;
  c.precision = model::Precision::kBFloat16;
  c.sequence = 64;
  c.micro_batch_sequences = 1;
  c.micro_batches = 8;
  c.split_backward = true;
  const LayerTemplates t = lower_block(m, {}, c);
  const std::int64_t kept = -m.layers / 2 * template_memory(t.program, t.weight).delta_bytes;
  for (std::size_t r = 0; r < 2; ++r) {
    const std::int64_t before = static_memory(plain, plain.classes[r]).peak_bytes;
    EXPECT_LE(static_memory(zero_bubble, zero_bubble.classes[r]).peak_bytes,
              before + static_cast<std::int64_t>(r + 1) * kept)
        << "rank " << r;
  }
}

// Four stages of one layer on two ranks: rank 0 owns layers 0 and 2, rank 1 layers 1 and 3; the
// last rank sends on to the first.
TEST(LowerInterleaved, RanksOwnSeveralRangesAndWrapAround) {
  model::ModelSpec m = llama();
  m.layers = 4;
  const Program p = lower(plan_of(m, {.pp = 2,
                                      .schedule = Schedule::kInterleaved,
                                      .global_batch = 4,
                                      .virtual_stages = 2}),
                          m)
                        .value();
  EXPECT_TRUE(check(p).empty());
  ASSERT_EQ(p.classes.size(), 2U);
  for (int r = 0; r < 2; ++r) {
    const RankClass& c = p.classes[static_cast<std::size_t>(r)];
    ASSERT_EQ(c.chunks.size(), 2U);
    for (int v = 0; v < 2; ++v) EXPECT_EQ(c.chunks[static_cast<std::size_t>(v)].first, r + 2 * v);
    int wraps = 0;
    for (const OpInstance& o : unroll(p, c)) {
      if (o.op->kind == OpKind::kCompute && o.op->name == "qkv") {
        EXPECT_EQ(o.layer % 2, r);
      }
      if (o.op->kind == OpKind::kExchange && o.op->legs[0].peer_offset == (r == 0 ? 1 : -1))
        ++wraps;
    }
    EXPECT_GT(wraps, 0);
  }
  // Activations: 3 sends a micro-batch, gradients: 3.
  int sends = 0;
  for (const RankClass& c : p.classes)
    for (const OpInstance& o : unroll(p, c))
      sends += o.op->kind == OpKind::kExchange && o.op->legs[0].send ? 1 : 0;
  EXPECT_EQ(sends, 6 * 4);
}

// 126 layers, as Llama-3-405B has, on 16 ranks with four chunks of two layers, but one layer in the
// last two chunks.
TEST(LowerInterleaved, ChunksMayDiffer) {
  model::ModelSpec m = llama();
  m.layers = 126;
  Plan plan = plan_of(m, {.pp = 1, .global_batch = 32});
  const LayerStrategy s = plan.vocabulary;
  plan.schedule = Schedule::kInterleaved;
  plan.virtual_stages = 4;
  plan.stages.assign(64, {.runs = {{.count = 2, .strategy = s}}});
  plan.stages[62].runs[0].count = plan.stages[63].runs[0].count = 1;
  const auto p = lower(plan, m);
  ASSERT_TRUE(p.has_value()) << base::to_string(p.error());
  EXPECT_EQ(p->classes.size(), 16U);
  EXPECT_TRUE(check(*p).empty());
}

}  // namespace
}  // namespace orrery::plan
