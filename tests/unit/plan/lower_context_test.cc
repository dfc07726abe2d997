// Context parallelism: the tokens of a sequence on several ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "plan/check/check.h"
#include "plan/lowering/lower.h"

namespace orrery::plan {
namespace {

using model::SegmentKind;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kSequence = 64, kSequences = 4;

model::ModelSpec llama() { return model::find_model("llama-tiny").value(); }
LayerContext context() {
  LayerContext c;
  c.precision = model::Precision::kFloat32;
  c.sequence = kSequence;
  c.micro_batch_sequences = kSequences;
  c.micro_batches = 2;
  c.global_batch = 8;
  return c;
}
std::vector<std::string> names(const LayerTemplates& t, TemplateId id) {
  std::vector<std::string> all;
  for (const Op& op : t.program.templates[id].ops)
    all.push_back((op.recomputed ? "again " : "") + op.name);
  return all;
}
/// "name size x stride bytes" of the collectives on the tensor stream.
std::vector<std::string> wires(const LayerTemplates& t, TemplateId id) {
  std::vector<std::string> all;
  for (const Op& op : t.program.templates[id].ops) {
    if (op.kind != OpKind::kCollective) continue;
    const Group& g = t.program.groups[op.group];
    all.push_back(fmt::format("{} {}x{} {}", op.name, g.size, g.stride, op.bytes));
  }
  return all;
}
std::vector<model::SegmentShape> shapes(const LayerTemplates& t, SegmentKind kind) {
  std::vector<model::SegmentShape> all;
  for (const model::SegmentShape& s : t.program.segments)
    if (s.kind == kind) all.push_back(s);
  return all;
}

TEST(RingAttention, KeysTravelBesideTheComputeAndTheirGradientsComeHome) {
  const LayerTemplates t = lower_block(llama(), {.cp = 2}, context());
  EXPECT_THAT(names(t, t.forward),
              ElementsAre("norm1", "qkv", "attention split", "shift(kv 1)", "attention 0",
                          "attention 1", "merge 1", "projection", "residual1", "norm2", "mlp_in",
                          "activation", "mlp_out", "residual2"));
  EXPECT_THAT(names(t, t.backward),
              ElementsAre("mlp_out", "activation", "mlp_in", "norm2", "projection", "shift(kv 1)",
                          "attention 0", "shift(dkv 1)", "attention 1", "add(dq 1)", "add(dkv 1)",
                          "shift(dkv 2)", "attention split", "qkv", "norm1"));
  const auto t4 = lower_block(llama(), {.cp = 4}, context());
  const auto shifts = [](const std::vector<std::string>& all) {
    return std::count_if(all.begin(), all.end(),
                         [](const auto& n) { return n.starts_with("shift"); });
  };
  EXPECT_EQ(shifts(names(t4, t4.forward)), 3);
  EXPECT_EQ(shifts(names(t4, t4.backward)), 3 + 4);
}

TEST(RingAttention, AShiftCarriesTheKeysAndValuesOfOwnTokens) {
  const model::ModelSpec m = llama();
  const LayerTemplates t = lower_block(m, {.tp = 2, .cp = 2}, context());
  const std::int64_t kv = kSequences * (kSequence / 2) * 2 * (m.kv_heads / 2 * m.head_dim) * 4;
  EXPECT_THAT(wires(t, t.forward), testing::Contains(fmt::format("shift(kv 1) 2x2 {}", kv)));
  const auto blocks = shapes(t, SegmentKind::kAttentionBlock);
  ASSERT_EQ(blocks.size(), 2U);
  for (int step : {0, 1}) {
    const model::SegmentShape& s = blocks[static_cast<std::size_t>(step)];
    EXPECT_EQ(
        std::tuple(s.tokens, s.kv_tokens, s.heads, s.ring_step, s.token_parts, s.token_stride),
        std::tuple(kSequence / 2, kSequence / 2, m.heads / 2, step, 2, 2));
    EXPECT_FALSE(s.rotary);  // turned before they travel
  }
}

TEST(RingAttention, CausalModelsKeepTheirTokensInZigZagOrder) {
  const model::ModelSpec m = llama();
  Plan plan =
      uniform_plan(m, "local", 1, {.dp = 4, .global_batch = 8, .sequence = kSequence}).value();
  EXPECT_EQ(token_chunks(plan, m), 1);
  plan.stages[0].runs = {{1, {.dp = 2, .cp = 2}}, {as_int(m.layers) - 1, {.cp = 4}}};
  ASSERT_TRUE(validate(plan, m).empty());
  EXPECT_EQ(token_chunks(plan, m), 8);
  const Program p = lower(plan, m).value();
  for (const model::SegmentShape& s : p.segments) {
    const bool by_place =
        s.kind == SegmentKind::kLoadTokens || s.kind == SegmentKind::kLoadTargets ||
        s.kind == SegmentKind::kAttentionSplit || s.kind == SegmentKind::kAttentionBlock ||
        s.kind == SegmentKind::kAttentionMerge;
    EXPECT_EQ(s.token_chunks, by_place ? 8 : 1) << model::to_string(s.kind);
  }
  plan.sequence = kSequence - 4;  // cp 4 divides it, eight chunks do not
  const base::Diagnostics faults = validate(plan, m);
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_THAT(faults[0].message, HasSubstr("into 8 chunks"));

  plan.stages[0].runs[1].strategy.context = ContextKind::kUlysses;
  EXPECT_EQ(token_chunks(plan, m), 4);
  model::ModelSpec bert = m;
  bert.causal = false;
  EXPECT_EQ(token_chunks(plan, bert), 1);
}

TEST(RingAttention, RecomputesTheRingAndKeepsOwnKeys) {
  const LayerTemplates t =
      lower_block(llama(), {.recompute = Recompute::kSelective, .cp = 2}, context());
  EXPECT_THAT(names(t, t.backward),
              ElementsAre("mlp_out", "activation", "mlp_in", "norm2", "again attention 0",
                          "again shift(kv 1)", "again attention 1", "again merge 1", "projection",
                          "shift(kv 1)", "attention 0", "shift(dkv 1)", "attention 1", "add(dq 1)",
                          "add(dkv 1)", "shift(dkv 2)", "attention split", "qkv", "norm1"));
}

TEST(Ulysses, TradesTokensForHeadsAroundAttention) {
  const model::ModelSpec m = llama();
  LayerStrategy s{.cp = 2};
  s.context = ContextKind::kUlysses;
  const LayerTemplates t = lower_block(m, s, context());
  EXPECT_THAT(names(t, t.forward), ElementsAre("norm1", "qkv", "all_to_all(qkv)", "attention",
                                               "all_to_all(o)", "projection", "residual1", "norm2",
                                               "mlp_in", "activation", "mlp_out", "residual2"));
  EXPECT_THAT(names(t, t.backward),
              ElementsAre("mlp_out", "activation", "mlp_in", "norm2", "projection",
                          "all_to_all(do)", "attention", "all_to_all(dqkv)", "qkv", "norm1"));
  const std::int64_t token = kSequences * (kSequence / 2) * 4, qkv = token * m.qkv_features(),
                     o = token * m.heads * m.head_dim;
  EXPECT_THAT(wires(t, t.forward), ElementsAre(fmt::format("all_to_all(qkv) 2x1 {}", qkv),
                                               fmt::format("all_to_all(o) 2x1 {}", o)));
  EXPECT_THAT(wires(t, t.backward), ElementsAre(fmt::format("all_to_all(do) 2x1 {}", o),
                                                fmt::format("all_to_all(dqkv) 2x1 {}", qkv)));
  const auto core = shapes(t, SegmentKind::kAttention);
  ASSERT_EQ(core.size(), 1U);
  EXPECT_EQ(std::tuple(core[0].tokens, core[0].heads, core[0].kv_heads, core[0].token_parts),
            std::tuple(kSequence, m.heads / 2, m.kv_heads / 2, 1));
}

TEST(ContextParallelism, GradientsAreSummedOverTokensAndSequences) {
  const LayerTemplates t = lower_block(llama(), {.tp = 2, .dp = 2, .cp = 2}, context());
  const std::int64_t elements = t.program.units[UnitId(0)].elements;
  EXPECT_THAT(wires(t, t.sync),
              ElementsAre(fmt::format("all_reduce(gradient) 4x2 {}", 4 * elements)));
}

TEST(ContextParallelism, EmbeddingAndHeadTakeTheirShareOfTheTokens) {
  const LayerStrategy v{.tp = 2, .dp = 2, .cp = 2};
  for (const LayerTemplates& t :
       {lower_embedding(llama(), v, context()), lower_head(llama(), v, context())}) {
    for (SegmentKind kind : {SegmentKind::kLoadTokens, SegmentKind::kLoadTargets}) {
      for (const model::SegmentShape& s : shapes(t, kind)) {
        EXPECT_EQ(std::tuple(s.sequences, s.parts, s.part_stride),
                  std::tuple(kSequences / 2, 2, 4));
        EXPECT_EQ(std::tuple(s.tokens, s.token_parts, s.token_stride),
                  std::tuple(kSequence / 2, 2, 2));
      }
    }
  }
}

TEST(ContextParallelism, ReshardingCutsTheTokensAndGathersThem) {
  const auto forward = [](const LayerStrategy& from, const LayerStrategy& to) {
    const LayerTemplates t = lower_reshard(llama(), from, to, context());
    return std::pair(names(t, t.forward), wires(t, t.forward));
  };
  const std::int64_t whole = kSequences * kSequence * llama().hidden * 4;
  EXPECT_THAT(forward({.tp = 2}, {.cp = 2}).first, ElementsAre("slice(x)"));
  EXPECT_THAT(forward({.cp = 2}, {.tp = 2}).second,
              ElementsAre(fmt::format("all_gather(x context) 2x1 {}", whole)));
  EXPECT_THAT(forward({.cp = 2}, {.dp = 2}).first,
              ElementsAre("all_gather(x context)", "slice(x)"));
  EXPECT_THAT(forward({.dp = 2}, {.cp = 2}).second,
              ElementsAre(fmt::format("all_gather(x batch) 2x1 {}", whole)));
  // The same share of the tokens: only sequences move.
  EXPECT_THAT(forward({.tp = 1, .dp = 4, .cp = 2}, {.tp = 1, .dp = 4, .cp = 2}).first,
              ElementsAre());
}

TEST(ContextParallelism, UlyssesNeedsAHeadForEveryRank) {
  model::ModelSpec m = llama();
  m.kv_heads = 2;
  UniformOptions o{.dp = 2, .micro_batch = 1, .global_batch = 4, .sequence = kSequence};
  Plan plan = uniform_plan(m, "local", 1, o).value();
  LayerStrategy& s = plan.stages[0].runs[0].strategy;
  s = {.tp = 2, .dp = 1, .cp = 2, .context = ContextKind::kUlysses};
  plan.vocabulary = {.tp = s.tp, .dp = 1, .cp = 2};
  const std::string faults = base::to_string(validate(plan, m));
  EXPECT_THAT(faults, HasSubstr("tp * cp = 4 does not divide 2 kv_heads"));
  s.context = ContextKind::kRing;
  EXPECT_TRUE(validate(plan, m).empty()) << base::to_string(validate(plan, m));
}

}  // namespace
}  // namespace orrery::plan
