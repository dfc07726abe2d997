/// Zero 3 of attention or MLP alone and of products in slices (OSDP, arXiv 2209.13258): units,
/// operations, memory, bytes moved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "plan/check/check.h"
#include "plan/lowering/lower.h"
#include "plan/program/memory.h"
#include "tests/unit/plan/mutant.h"
#include "tests/unit/plan/small_program.h"

namespace orrery::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

model::ModelSpec llama() { return model::find_model("llama-tiny").value(); }

LayerContext context(std::int64_t micro_batches = 1, int prefetch_depth = 0) {
  LayerContext c;
  c.precision = model::Precision::kFloat32;
  c.sequence = 64;
  c.micro_batch_sequences = 8;
  c.micro_batches = micro_batches;
  c.global_batch = 8 * micro_batches;
  c.prefetch_depth = prefetch_depth;
  return c;
}

std::vector<std::string> names(const LayerTemplates& t, TemplateId id) {
  std::vector<std::string> all;
  for (const Op& op : t.program.templates[id].ops)
    all.push_back((op.recomputed ? "again " : "") + op.name);
  return all;
}

TEST(LowerOperators, TheOtherOperatorsAreReplicated) {
  const LayerTemplates t =
      lower_block(llama(), {.dp = 2, .zero = 3, .operators = ShardedOperators::kMlp}, context());
  ASSERT_EQ(t.program.units.size(), 2u);
  const ParameterUnit &attention = t.program.units[UnitId(0)], &mlp = t.program.units[UnitId(1)];
  EXPECT_THAT(attention.name, HasSubstr("attention"));
  EXPECT_EQ(attention.strategy.zero, 0);
  EXPECT_EQ(mlp.strategy.zero, 3);
  EXPECT_EQ(attention.elements + mlp.elements, llama().block_parameters());
  const std::int64_t h = llama().hidden;
  EXPECT_EQ(mlp.elements, 3 * h * llama().ffn + h);
  EXPECT_THAT(names(t, t.gather_forward), ElementsAre("all_gather(weights)"));
  EXPECT_THAT(names(t, t.sync), ElementsAre("reduce_scatter(gradient)", "accumulate(gradient)"));
  EXPECT_THAT(names(t, t.sync_last), ElementsAre("all_reduce(gradient)"));
  // fp32: parameter, gradient and two moments of each, whole or halved.
  std::int64_t persistent = 0;
  for (const auto& p : t.program.classes.front().persistent)
    persistent += t.program.buffers[p.buffer].bytes();
  EXPECT_EQ(persistent, 16 * (attention.elements + mlp.elements / 2));
}

TEST(LowerOperators, ReplicatedOperatorsAreReducedOncePerStepBesideOthersOfEveryMicroBatch) {
  const LayerTemplates t = lower_block(llama(),
                                       {.dp = 2,
                                        .zero = 3,
                                        .grad_reduce = GradReduce::kMicroBatch,
                                        .operators = ShardedOperators::kAttention},
                                       context(4));
  EXPECT_TRUE(t.reduces_per_micro_batch);
  EXPECT_THAT(names(t, t.sync), ElementsAre("reduce_scatter(gradient)", "accumulate(gradient)"));
  ASSERT_TRUE(t.sync_last.valid());
  EXPECT_THAT(names(t, t.sync_last), ElementsAre("all_reduce(gradient)"));
  EXPECT_EQ(template_memory(t.program, t.sync_last), TemplateMemory{});
}

TEST(LowerOperators, AllAreReducedTogetherOncePerStep) {
  const LayerTemplates t = lower_block(
      llama(), {.dp = 2, .zero = 3, .operators = ShardedOperators::kAttention}, context(4));
  EXPECT_THAT(names(t, t.sync), ElementsAre("reduce_scatter(gradient)", "all_reduce(gradient)"));
  EXPECT_FALSE(t.reduces_per_micro_batch || t.sync_last.valid());
}

TEST(LowerOperators, OneReplicaHasNothingToShard) {
  const LayerTemplates plain = lower_block(llama(), {.tp = 2, .zero = 3}, context());
  const LayerTemplates t = lower_block(
      llama(), {.tp = 2, .zero = 3, .operators = ShardedOperators::kMlp, .slices = 4}, context());
  EXPECT_EQ(t.program.units.size(), 1u);
  EXPECT_EQ(names(t, t.forward), names(plain, plain.forward));
}

TEST(LowerSlices, EachIsGatheredUsedAndReducedByItself) {
  const LayerTemplates t = lower_block(
      llama(), {.dp = 2, .zero = 3, .operators = ShardedOperators::kMlp, .slices = 2}, context());
  EXPECT_THAT(names(t, t.forward),
              ElementsAre("norm1", "qkv", "attention", "projection", "residual1", "norm2",
                          "all_gather(weights)", "mlp_in 1/2", "all_gather(weights)", "mlp_in 2/2",
                          "activation", "all_gather(weights)", "mlp_out 1/2", "all_gather(weights)",
                          "mlp_out 2/2", "residual2"));
  const std::vector<std::string> backward = names(t, t.backward);
  EXPECT_THAT(
      std::vector<std::string>(backward.begin() + 1, backward.begin() + 7),
      ElementsAre("all_gather(weights)", "zero(gradient part)", "mlp_out 1/2",
                  "reduce_scatter(gradient)", "accumulate(gradient)", "all_gather(weights)"));
  EXPECT_EQ(backward.front(), "zero(gradient part)");  // of the norm
  for (const Op& op : t.program.templates[t.forward].ops) {
    if (op.name == "mlp_in 1/2") {
      EXPECT_TRUE(op.updates.empty() && op.writes.size() == 1 && op.frees.size() == 1);
    }
    if (op.name == "mlp_in 2/2") {
      EXPECT_TRUE(op.updates.size() == 1 && op.writes.empty());
    }
  }
}

TEST(LowerSlices, AreGatheredAheadByThePrefetchDepth) {
  const LayerTemplates t =
      lower_block(llama(), {.dp = 2, .zero = 3, .operators = ShardedOperators::kMlp, .slices = 2},
                  context(1, 1));
  EXPECT_THAT(
      names(t, t.forward),
      ElementsAre("all_gather(weights)", "norm1", "qkv", "attention", "projection", "residual1",
                  "norm2", "all_gather(weights)", "mlp_in 1/2", "all_gather(weights)", "mlp_in 2/2",
                  "activation", "all_gather(weights)", "mlp_out 1/2", "mlp_out 2/2", "residual2"));
}

TEST(LowerSlices, RecomputationGathersThemOnceMore) {
  const LayerStrategy s{.dp = 2, .zero = 3, .recompute = Recompute::kFull, .slices = 2};
  const auto gathers = [](const std::vector<std::string>& all) {
    return std::count(all.begin(), all.end(), "all_gather(weights)");
  };
  const LayerTemplates t = lower_block(llama(), s, context());
  EXPECT_EQ(gathers(names(t, t.forward)), 8);
  const std::vector<std::string> backward = names(t, t.backward);
  // the last product is not replayed
  EXPECT_EQ(
      gathers(backward) + std::count(backward.begin(), backward.end(), "again all_gather(weights)"),
      8 + 6);
}

/// y = Σ_j x_j W_j of W [n, k] over N ranks: what of W is gathered at once, and bytes that a rank
/// moves for it (wire bytes of a ring).
struct Traffic {
  std::int64_t gathered_peak = 0, moved = 0;
};
Traffic traffic_of(const std::string& parameter, int slices) {
  model::ModelSpec m;
  m.name = "one wide product";
  m.layers = 1;
  m.hidden = 8192;
  m.heads = m.kv_heads = 64;
  m.head_dim = 128;
  m.ffn = 32768;
  m.vocab = 64;
  m.max_positions = 64;
  const LayerTemplates t = lower_block(
      m, {.dp = 8, .zero = 3, .operators = ShardedOperators::kMlp, .slices = slices}, context());
  // Elements of the parameter in a unit.
  const auto share = [&](UnitId unit) {
    std::int64_t n = 0;
    for (const Parameter& p : t.program.units[unit].parameters) {
      if (p.name.ends_with(parameter))
        n += std::accumulate(p.local_shape.begin(), p.local_shape.end(), std::int64_t{1},
                             std::multiplies<>());
    }
    return n;
  };
  Traffic out;
  for (const auto& passes :
       {std::pair(t.gather_forward, t.forward), std::pair(t.gather_backward, t.backward)}) {
    std::int64_t alive = 0;
    for (const TemplateId id : {passes.first, passes.second, t.sync}) {
      if (id == t.sync && passes.second == t.forward) continue;
      for (const Op& op : t.program.templates[id].ops) {
        const auto bytes = [&](const BufferRef& r) {
          const BufferDecl& d = t.program.buffers[r.buffer];
          return d.category == BufferCategory::kCommunication && d.unit ? 4 * share(*d.unit) : 0;
        };
        for (const BufferRef& w : op.writes) alive += bytes(w);
        out.gathered_peak = std::max(out.gathered_peak, alive);
        for (const BufferRef& f : op.frees) alive -= bytes(f);
        if (op.kind != OpKind::kCollective) continue;
        BufferRef whole = op.reads.empty() ? op.updates[0] : op.reads[0];
        if (op.collective == Collective::kAllGather) whole = op.writes[0];
        if (t.program.buffers[whole.buffer].unit)
          out.moved += 7 * 4 * share(*t.program.buffers[whole.buffer].unit) / 8;
      }
    }
    EXPECT_EQ(alive, 0);
  }
  return out;
}

// methods of OSDP, operator splitting: n = 8192, k = 32768, N = 8, fp32.
TEST(LowerSlices, GatheredPeakFallsAsOneOverTheirNumberAtConstantBytesMoved) {
  constexpr std::int64_t kMegabyte = 1 << 20;
  std::int64_t peak = 1024;
  for (const int slices : {1, 2, 4, 8, 16}) {
    for (const char* parameter : {"mlp.in.weight", "mlp.out.weight"}) {
      const Traffic t = traffic_of(parameter, slices);
      EXPECT_EQ(t.gathered_peak, peak * kMegabyte) << parameter << " in " << slices;
      EXPECT_EQ(t.moved, 2688 * kMegabyte) << parameter << " in " << slices;
    }
    peak /= 2;
  }
}

Program sliced() {
  Plan plan = small_plan(small_model(), {.dp = 2, .zero = 3});
  plan.stages[0].runs[0].strategy.slices = 2;
  return *lower(plan, small_model());
}

TEST(LowerSlices, AProductWithoutASliceMayNotBeRead) {
  const Program p = sliced();
  Mutant m(p);
  EXPECT_TRUE(m.faults().empty());
  // The slice and its gather: no buffer tells that something is missing.
  const std::size_t product = m.named(0, "mlp_in 2/2");
  const BufferRef weights = *m.ops(0)[product].op->weights;
  const std::size_t gather =
      m.first(0, [&](const OpInstance& o) { return o.op->writes == std::vector{weights}; });
  m.drop(0, product);
  m.drop(0, gather);
  EXPECT_TRUE(m.has(FaultKind::kNeverReduced));
}

TEST(LowerSlices, MayNotBeAddedTwice) {
  const Program p = sliced();
  Mutant m(p);
  const SegmentId first = m.ops(0)[m.named(0, "mlp_in 1/2")].op->segment;
  m.edit(0, m.named(0, "mlp_in 2/2")).segment = first;
  EXPECT_TRUE(m.has(FaultKind::kReducedTwice));
}

}  // namespace
}  // namespace orrery::plan
