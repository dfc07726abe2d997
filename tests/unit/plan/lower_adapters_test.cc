// Low-rank adapters: operations, elements and bytes by hand, and that nothing frozen is trained.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "plan/check/check.h"
#include "plan/program/memory.h"
#include "tests/unit/plan/layer_templates.h"
#include "tests/unit/plan/small_program.h"

namespace orrery::plan {
namespace {

using testing::ElementsAre;

model::ModelSpec adapted(model::ModelSpec m, std::string_view targets = "all-linear",
                         std::int64_t rank = 4) {
  return model::with_adapter(std::move(m), model::adapter_of(rank, targets).value()).value();
}

LayerContext context() {
  LayerContext c;
  c.precision = model::Precision::kBFloat16;
  c.sequence = 16;
  c.micro_batch_sequences = 2;
  c.micro_batches = 2;
  c.global_batch = 4;
  return c;
}

std::vector<std::string> names(const LayerTemplates& t, TemplateId id) {
  std::vector<std::string> all;
  for (const Op& op : t.program.templates[id].ops) all.push_back(op.name);
  return all;
}

TEST(Adapters, StandBehindTheirProductsAndSums) {
  const LayerTemplates t =
      lower_block(adapted(small_model(true), "attention"), {.tp = 2, .dp = 1}, context());
  EXPECT_THAT(
      names(t, t.forward),
      ElementsAre("norm1", "qkv", "qkv adapter in", "qkv adapter out", "attention", "projection",
                  "all_reduce(p)", "projection adapter in", "all_reduce(projection adapter t)",
                  "projection adapter out", "residual1", "norm2", "mlp_in", "activation", "mlp_out",
                  "all_reduce(q)", "residual2"));
  EXPECT_THAT(names(t, t.backward),
              ElementsAre("mlp_out", "activation", "mlp_in", "all_reduce(dc)", "norm2",
                          "projection", "projection adapter out", "projection adapter in",
                          "attention", "qkv", "all_reduce(da)", "qkv adapter out",
                          "all_reduce(qkv adapter dt)", "qkv adapter in", "norm1"));
  EXPECT_TRUE(names(t, t.sync).empty());
}

TEST(Adapters, SequenceParallelTokensTravelWithTheRankAlone) {
  const LayerTemplates t = lower_block(adapted(small_model(true), "attention"),
                                       {.tp = 2, .dp = 1, .sequence_parallel = true}, context());
  // two sequences of 16 tokens, four numbers each, bf16
  EXPECT_EQ(op_of(t, t.forward, "all_gather(qkv adapter t)").bytes, 2 * 16 * 4 * 2);
  EXPECT_EQ(op_of(t, t.backward, "reduce_scatter(qkv adapter dt)").bytes, 2 * 16 * 4 * 2);
  for (const Op& op : t.program.templates[t.backward].ops)
    EXPECT_NE(op.name, "all_gather(a)") << "an input of frozen products";
  // A [4, 32] of qkv and B [32, 4] of the projection, norms' gains are frozen
  EXPECT_EQ(op_of(t, t.sync, "all_reduce(replicated gradients)").bytes, 2 * 4 * 32 * 4);
}

TEST(Adapters, FrozenProductsMakeNoGradientsOfWeightsAndReadNoInputs) {
  const LayerTemplates t = lower_block(adapted(small_model()), {}, context());
  for (const Op& op : t.program.templates[t.backward].ops) {
    if (!op.unit) continue;
    const bool frozen = t.program.units[*op.unit].frozen;
    EXPECT_EQ(frozen, op.name.find("adapter") == std::string::npos) << op.name;
    EXPECT_EQ(op.gradients.has_value(), !frozen) << op.name;
    EXPECT_EQ(op.phase, frozen ? Phase::kB : Phase::kBG) << op.name;
  }
  EXPECT_EQ(op_of(t, t.backward, "qkv").reads.size(), 1);
}

TEST(Adapters, OnlyTheyHaveStates) {
  const model::ModelSpec plain = small_model(true), m = adapted(plain);
  const LayerTemplates t = lower_block(m, {}, context());
  // 16 bytes beside the weight itself: gradient 4, master 4, moments 8
  EXPECT_EQ(persistent_bytes(t),
            2 * plain.block_parameters() + 18 * m.trained_parameters() / plain.layers);
  const std::int64_t rows = ceil_div(plain.vocab, std::int64_t{128}) * 128;
  EXPECT_EQ(persistent_bytes(lower_embedding(m, {}, context())), 2 * rows * plain.hidden);
  EXPECT_TRUE(names(t, t.sync).empty());
  EXPECT_THAT(names(t, t.update), ElementsAre("adamw"));
}

TEST(Adapters, FrozenWeightsAreGatheredUnderZero3AndNeverReduced) {
  const LayerTemplates t = lower_block(adapted(small_model()), {.dp = 2, .zero = 3}, context());
  EXPECT_THAT(names(t, t.gather_backward),
              ElementsAre("all_gather(weights)", "all_gather(weights)"));
  EXPECT_THAT(names(t, t.sync), ElementsAre("reduce_scatter(gradient)"));
  const LayerTemplates whole = lower_block(adapted(small_model()), {.dp = 2, .zero = 1}, context());
  EXPECT_THAT(names(whole, whole.zero_gradient),
              ElementsAre("zero(gradient)", "all_gather(parameters)"));
}

/// Bytes of what forward leaves to backward.
std::int64_t stash(const model::ModelSpec& m) {
  const Program p = small_program(m, {.micro_batch = 8, .precision = model::Precision::kBFloat16});
  std::int64_t bytes = 0;
  for (const Template& t : p.templates) {
    if (t.name.find("block") == std::string::npos || t.name.find(".backward") == std::string::npos)
      continue;
    std::vector<BufferRef> seen;
    for (const Op& op : t.ops)
      for (const BufferRef& r : op.writes) seen.push_back(r);
    for (const Op& op : t.ops)
      for (const BufferRef& r : op.reads) {
        if (std::ranges::find(seen, r) != seen.end()) continue;
        seen.push_back(r);
        bytes += p.buffers[r.buffer].bytes();
      }
  }
  return bytes;
}

TEST(Adapters, KeepInputsOfAdaptedProductsAlone) {
  const model::ModelSpec plain = small_model(true);
  constexpr std::int64_t kTokens = 8 * 16, kBf16 = 2;
  const std::int64_t all = stash(plain), mlp_out = stash(adapted(plain, "mlp-out")),
                     qkv = stash(adapted(plain, "qkv"));
  // a and c, [T, 32] each, go; t [T, 4] of mlp_out comes
  EXPECT_EQ(mlp_out, all + kTokens * kBf16 * (4 - 32 - 32));
  // c, and g [T, 64], go; t of qkv comes
  EXPECT_EQ(qkv, all + kTokens * kBf16 * (4 - 32 - 64));
}

TEST(Adapters, TheCheckerSeesGradientsOfFrozenWeights) {
  Program p = small_program(adapted(small_model()), {.micro_batch = 4});
  ASSERT_TRUE(check(p).empty());
  for (Template& t : p.templates)
    for (Op& op : t.ops)
      if (op.gradients) p.units[*op.unit].frozen = true;
  EXPECT_FALSE(check(p).empty());
}

// The gradient that ends at a frozen table is the stream's, however wide the table is.
TEST(Adapters, StandOverANarrowTable) {
  model::ModelSpec m = small_model();
  m.embedding_hidden = m.hidden / 2;
  for (const int stages : {1, 2}) {
    const auto faults = check(small_program(adapted(m), {.pp = stages, .micro_batch = 4}));
    EXPECT_TRUE(faults.empty()) << faults.front().message;
  }
}

TEST(Adapters, AreOfThePlan) {
  const model::ModelSpec m = adapted(small_model(true), "mlp", 8);
  const Plan plan = small_plan(m, {.tp = 2, .dp = 2});
  EXPECT_EQ(plan.adapter, m.adapter);
  const Plan again =
      read_plan(base::Node::parse_text(base::to_text(to_json(plan)), "plan.json").value()).value();
  EXPECT_EQ(again, plan);
  EXPECT_FALSE(validate(plan, small_model(true)).empty());
  EXPECT_FALSE(validate(plan, adapted(small_model(true), "mlp", 4)).empty());
}

}  // namespace
}  // namespace orrery::plan
