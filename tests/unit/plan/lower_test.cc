#include "plan/lowering/lower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "model/segment.h"
#include "plan/check/check.h"
#include "plan/program/expand.h"
#include "plan/program/memory.h"

namespace orrery::plan {
namespace {

using testing::ElementsAre;

model::ModelSpec llama() { return model::find_model("llama-tiny").value(); }
model::ModelSpec gpt2() { return model::find_model("gpt2-tiny").value(); }

LayerContext context(std::int64_t micro_batches = 4) {
  LayerContext c;
  c.precision = model::Precision::kFloat32;
  c.sequence = 64;
  c.micro_batch_sequences = 4;
  c.micro_batches = micro_batches;
  c.global_batch = 4 * micro_batches;
  return c;
}
LayerStrategy strategy(int tp, int dp, int zero = 0, bool sp = false,
                       Recompute r = Recompute::kNone) {
  LayerStrategy s;
  s.tp = tp;
  s.dp = dp;
  s.zero = zero;
  s.sequence_parallel = sp;
  s.recompute = r;
  return s;
}
std::vector<std::string> names(const LayerTemplates& t, TemplateId id) {
  std::vector<std::string> all;
  for (const Op& op : t.program.templates[id].ops)
    all.push_back((op.recomputed ? "again " : "") + op.name);
  return all;
}

TEST(LowerBlock, OneRankComputesAndNothingElse) {
  const LayerTemplates t = lower_block(llama(), strategy(1, 1), context());
  EXPECT_THAT(names(t, t.forward),
              ElementsAre("norm1", "qkv", "attention", "projection", "residual1", "norm2", "mlp_in",
                          "activation", "mlp_out", "residual2"));
  EXPECT_THAT(names(t, t.backward), ElementsAre("mlp_out", "activation", "mlp_in", "norm2",
                                                "projection", "attention", "qkv", "norm1"));
  EXPECT_THAT(names(t, t.sync), ElementsAre());
  EXPECT_THAT(names(t, t.update), ElementsAre("adamw"));
}

TEST(LowerBlock, TensorParallelReducesTwiceEachWay) {
  const LayerTemplates t = lower_block(llama(), strategy(2, 1), context());
  EXPECT_THAT(
      names(t, t.forward),
      ElementsAre("norm1", "qkv", "attention", "projection", "all_reduce(p)", "residual1", "norm2",
                  "mlp_in", "activation", "mlp_out", "all_reduce(q)", "residual2"));
  EXPECT_THAT(names(t, t.backward),
              ElementsAre("mlp_out", "activation", "mlp_in", "all_reduce(dc)", "norm2",
                          "projection", "attention", "qkv", "all_reduce(da)", "norm1"));
}

TEST(LowerBlock, SequenceParallelGathersInputsAgainForTheWeightGradient) {
  const LayerTemplates t = lower_block(llama(), strategy(2, 1, 0, true), context());
  EXPECT_THAT(names(t, t.forward),
              ElementsAre("norm1", "all_gather(a)", "qkv", "attention", "projection",
                          "reduce_scatter(p)", "residual1", "norm2", "all_gather(c)", "mlp_in",
                          "activation", "mlp_out", "reduce_scatter(q)", "residual2"));
  EXPECT_THAT(
      names(t, t.backward),
      ElementsAre("all_gather(dz)", "mlp_out", "activation", "again all_gather(c)", "mlp_in",
                  "reduce_scatter(dc)", "norm2", "all_gather(dp)", "projection", "attention",
                  "again all_gather(a)", "qkv", "reduce_scatter(da)", "norm1"));
  EXPECT_THAT(names(t, t.sync), ElementsAre("all_reduce(replicated gradients)"));
}

TEST(LowerBlock, FullRecomputationStopsAtTheLastValueTheBackwardNeeds) {
  const LayerTemplates t =
      lower_block(llama(), strategy(2, 1, 0, false, Recompute::kFull), context());
  EXPECT_THAT(names(t, t.backward),
              ElementsAre("again norm1", "again qkv", "again attention", "again projection",
                          "again all_reduce(p)", "again residual1", "again norm2", "again mlp_in",
                          "again activation", "mlp_out", "activation", "mlp_in", "all_reduce(dc)",
                          "norm2", "projection", "attention", "qkv", "all_reduce(da)", "norm1"));
}

TEST(LowerBlock, FullRecomputationKeepsOnlyTheInput) {
  const LayerTemplates t =
      lower_block(llama(), strategy(1, 1, 0, false, Recompute::kFull), context());
  const model::ModelSpec m = llama();
  // Forward leaves its input, which was there, and its output, which belongs to the next layer.
  EXPECT_EQ(template_memory(t.program, t.forward).delta_bytes, 4 * 64 * m.hidden * 4);
}

TEST(LowerBlock, SelectiveRecomputationRepeatsTheAttentionCoreAlone) {
  const LayerTemplates t =
      lower_block(llama(), strategy(1, 1, 0, false, Recompute::kSelective), context());
  EXPECT_THAT(names(t, t.backward),
              ElementsAre("mlp_out", "activation", "mlp_in", "norm2", "again attention",
                          "projection", "attention", "qkv", "norm1"));
}

TEST(LowerBlock, RecomputationByOperatorKeepsTheCoreAndEveryOtherProduct) {
  const auto backward = [](const LayerStrategy& s) {
    const LayerTemplates t = lower_block(llama(), s, context());
    return names(t, t.backward);
  };
  // projection and up again, gate kept; both add to one gradient
  EXPECT_THAT(backward(strategy(1, 1, 0, false, Recompute::kOperator)),
              ElementsAre("again projection", "again residual1", "again norm2", "again mlp_up",
                          "again activation", "mlp_out", "activation", "mlp_gate", "mlp_up",
                          "add(dc of up)", "norm2", "projection", "attention", "again norm1", "qkv",
                          "norm1"));
  // what the tensor group has summed is there
  EXPECT_THAT(backward(strategy(2, 1, 0, true, Recompute::kOperator)),
              testing::Not(testing::Contains("again projection")));
}

TEST(LowerBlock, ZeroStagesShardWhatTheySay) {
  const std::int64_t p = llama().block_parameters();  // divides by 2
  const auto state = [&](int zero, std::int64_t micro_batches) {
    const LayerTemplates t = lower_block(llama(), strategy(1, 2, zero), context(micro_batches));
    std::int64_t bytes = 0;
    for (const auto& s : t.program.classes[0].persistent)
      bytes += t.program.buffers[s.buffer].bytes();
    return bytes;
  };
  EXPECT_EQ(state(0, 4), 16 * p);
  EXPECT_EQ(state(1, 4), 12 * p);
  EXPECT_EQ(state(2, 1), 10 * p);
  EXPECT_EQ(state(3, 1), 8 * p);
  // several micro-batches accumulate in full before the one reduction
  EXPECT_EQ(state(2, 4), 12 * p);
}

TEST(LowerBlock, ZeroStagesCommunicateWhatTheySay) {
  const auto sync = [](int zero, std::int64_t micro_batches) {
    const LayerTemplates t = lower_block(llama(), strategy(1, 2, zero), context(micro_batches));
    std::vector<std::string> all = names(t, t.gather_forward);
    for (TemplateId id : {t.gather_backward, t.sync, t.update, t.zero_gradient})
      for (std::string& n : names(t, id)) all.push_back(n);
    return all;
  };
  EXPECT_THAT(sync(0, 4), ElementsAre("all_reduce(gradient)", "adamw", "zero(gradient)"));
  EXPECT_THAT(sync(1, 4), ElementsAre("reduce_scatter(gradient)", "adamw", "zero(gradient)",
                                      "all_gather(parameters)"));
  EXPECT_THAT(sync(2, 1), ElementsAre("reduce_scatter(gradient)", "accumulate(gradient)", "adamw",
                                      "zero(gradient)", "all_gather(parameters)"));
  EXPECT_THAT(sync(3, 1),
              ElementsAre("all_gather(weights)", "all_gather(weights)", "reduce_scatter(gradient)",
                          "accumulate(gradient)", "adamw", "zero(gradient)"));
}

/// The whole state of a block on one rank, and what its gradients and parameters cost on the wire:
/// name, group, bytes.
struct Sharding {
  std::int64_t state_bytes = 0;
  std::vector<std::string> communication;
};
Sharding sharding_of(const LayerStrategy& s, std::int64_t micro_batches) {
  const LayerTemplates t = lower_block(llama(), s, context(micro_batches));
  Sharding all;
  for (const auto& p : t.program.classes[0].persistent)
    all.state_bytes += t.program.buffers[p.buffer].bytes();
  for (TemplateId id : {t.gather_forward, t.sync, t.update, t.zero_gradient}) {
    for (const Op& op : t.program.templates[id].ops) {
      if (op.kind != OpKind::kCollective) continue;
      const Group& g = t.program.groups[op.group];
      all.communication.push_back(fmt::format("{} {}x{} {}", op.name, g.size, g.stride, op.bytes));
    }
  }
  return all;
}

TEST(HybridSharding, SplitsStatesOverNeighboursAndReducesAcrossTheReplicas) {
  // fp32: 4 p bytes of parameters, 4 p of gradients, 8 p of moments
  const std::int64_t p = llama().block_parameters();
  ASSERT_EQ(p % 4, 0);
  LayerStrategy s = strategy(1, 4, 3);
  s.shard = 2;
  const Sharding three = sharding_of(s, 1);
  EXPECT_EQ(three.state_bytes, 16 * p / 2);
  EXPECT_THAT(three.communication,
              ElementsAre(fmt::format("all_gather(weights) 2x1 {}", 4 * p),
                          fmt::format("reduce_scatter(gradient) 2x1 {}", 4 * p),
                          fmt::format("all_reduce(owned gradient) 2x2 {}", 2 * p)));
  s.zero = 1;
  const Sharding one = sharding_of(s, 4);
  EXPECT_EQ(one.state_bytes, 8 * p + 8 * p / 2);
  EXPECT_THAT(one.communication,
              ElementsAre(fmt::format("reduce_scatter(gradient) 2x1 {}", 4 * p),
                          fmt::format("all_reduce(owned gradient) 2x2 {}", 2 * p),
                          fmt::format("all_gather(parameters) 2x1 {}", 4 * p)));
  // four micro-batches scatter, one all-reduce follows before the update
  s.zero = 2;
  s.grad_reduce = GradReduce::kMicroBatch;
  const Sharding two = sharding_of(s, 4);
  EXPECT_EQ(two.state_bytes, 4 * p + 12 * p / 2);
  EXPECT_THAT(two.communication,
              ElementsAre(fmt::format("reduce_scatter(gradient) 2x1 {}", 4 * p),
                          fmt::format("all_reduce(owned gradient) 2x2 {}", 2 * p),
                          fmt::format("all_gather(parameters) 2x1 {}", 4 * p)));
  const LayerTemplates t = lower_block(llama(), s, context(4));
  EXPECT_THAT(names(t, t.update), ElementsAre("all_reduce(owned gradient)", "adamw"));
}

TEST(Reductions, AtTheEndStandInTurnWithTheOptimizer) {
  LayerStrategy s = strategy(1, 2, 1);
  s.grad_reduce = GradReduce::kEnd;
  const LayerTemplates t = lower_block(llama(), s, context());
  EXPECT_THAT(names(t, t.sync), ElementsAre());
  EXPECT_THAT(names(t, t.update),
              ElementsAre("reduce_scatter(gradient)", "adamw", "all_gather(parameters)"));
  for (const Op& op : t.program.templates[t.update].ops) EXPECT_EQ(op.stream, Stream::kCompute);
}

TEST(Pieces, GatherAheadOfTheProductAndScatterBehindTheNext) {
  LayerStrategy s = strategy(2, 1, 0, true);
  s.tensor_pieces = 2;
  const LayerTemplates t = lower_block(llama(), s, context());
  EXPECT_THAT(
      names(t, t.forward),
      ElementsAre("norm1", "all_gather(a 1/2)", "qkv 1/2", "all_gather(a 2/2)", "qkv 2/2",
                  "attention", "projection 1/2", "projection 2/2", "reduce_scatter(p 1/2)",
                  "reduce_scatter(p 2/2)", "residual1", "norm2", "all_gather(c 1/2)", "mlp_in 1/2",
                  "all_gather(c 2/2)", "mlp_in 2/2", "activation", "mlp_out 1/2", "mlp_out 2/2",
                  "reduce_scatter(q 1/2)", "reduce_scatter(q 2/2)", "residual2"));
  // backward of what was gathered runs whole, for the input and then for the weights
  const std::vector<std::string> back = names(t, t.backward);
  const auto first = std::ranges::find(back, "all_gather(c)");
  ASSERT_NE(first, back.end());
  EXPECT_THAT(std::vector(first, first + 4),
              ElementsAre("all_gather(c)", "mlp_in", "reduce_scatter(dc)", "mlp_in"));
}

// What travels and what is multiplied is the same, piece by piece.
TEST(Pieces, CarryTheBytesOfTheWhole) {
  LayerStrategy s = strategy(4, 1, 0, true);
  const auto bytes = [&](int pieces) {
    s.tensor_pieces = pieces;
    const LayerTemplates t = lower_block(gpt2(), s, context());
    std::int64_t sum = 0;
    for (const TemplateId id : {t.forward, t.backward}) {
      for (const Op& op : t.program.templates[id].ops)
        if (op.kind == OpKind::kCollective) sum += op.bytes;
    }
    return sum;
  };
  EXPECT_EQ(bytes(4), bytes(1));
  EXPECT_EQ(bytes(2), bytes(1));
}

TEST(HybridSharding, GroupsLieTensorRanksApart) {
  LayerStrategy s = strategy(2, 4, 3);
  s.shard = 2;
  const LayerTemplates t = lower_block(llama(), s, context(1));
  const ParameterUnit& u = t.program.units[UnitId(0)];
  EXPECT_EQ(t.program.groups[u.shard_group], (Group{"shard", 2, 2}));
  EXPECT_EQ(t.program.groups[u.replica_group], (Group{"replica", 2, 4}));
}

TEST(HybridSharding, OverOneRankShardsNothing) {
  LayerStrategy s = strategy(1, 4, 3);
  s.shard = 1;
  EXPECT_EQ(sharding_of(s, 4).state_bytes, sharding_of(strategy(1, 4), 4).state_bytes);
  EXPECT_EQ(sharding_of(s, 4).communication, sharding_of(strategy(1, 4), 4).communication);
}

TEST(LowerReshard, FewerTensorRanksSliceForwardAndGatherBackward) {
  const LayerTemplates t = lower_reshard(llama(), strategy(4, 1), strategy(1, 4), context());
  EXPECT_THAT(names(t, t.forward), ElementsAre("slice(x)"));
  EXPECT_THAT(names(t, t.backward), ElementsAre("all_gather(dx batch)"));
  const LayerTemplates back =
      lower_reshard(llama(), strategy(1, 4), strategy(4, 1, 0, true), context());
  EXPECT_THAT(names(back, back.forward), ElementsAre("all_gather(x batch)", "slice(x)"));
  EXPECT_THAT(names(back, back.backward), ElementsAre("all_gather(dx tokens)", "slice(dx)"));
}

TEST(LowerReshard, TheSameLayoutNeedsNothing) {
  const LayerTemplates t = lower_reshard(llama(), strategy(2, 2, 0), strategy(2, 2, 3), context());
  EXPECT_TRUE(t.program.templates[t.forward].ops.empty());
  EXPECT_TRUE(t.program.templates[t.backward].ops.empty());
}

Plan uniform(const model::ModelSpec& m, int tp, int pp, int dp, std::int64_t micro_batches,
             Schedule schedule = Schedule::k1F1B) {
  UniformOptions o;
  o.tp = tp;
  o.pp = pp;
  o.dp = dp;
  o.micro_batch = 1;
  o.global_batch = micro_batches * dp;
  o.sequence = 64;
  o.schedule = schedule;
  o.precision = model::Precision::kFloat32;
  return uniform_plan(m, "local", 1, o).value();
}

std::size_t node_count(const std::vector<Node>& nodes) {
  std::size_t n = nodes.size();
  for (const Node& node : nodes) n += node_count(node.body);
  return n;
}
std::size_t size_of(const Program& p) {
  std::size_t n = 0;
  for (const RankClass& c : p.classes) n += node_count(c.body);
  for (std::uint32_t i = 0; i < p.templates.size(); ++i) n += p.templates[TemplateId(i)].ops.size();
  return n;
}

TEST(Lower, SizeDoesNotGrowWithDepthOrBatch) {
  model::ModelSpec deep = llama();
  const std::size_t small = size_of(lower(uniform(deep, 1, 2, 1, 8), deep).value());
  deep.layers *= 16;
  EXPECT_EQ(size_of(lower(uniform(deep, 1, 2, 1, 128), deep).value()), small);
}

TEST(Lower, TiedCopiesOfTheTableAreReducedAcrossTheStages) {
  const auto m = gpt2();
  const Program p = lower(uniform(m, 1, 2, 1, 2), m).value();
  int tied = 0;
  for (const RankClass& c : p.classes)
    for (const OpInstance& o : unroll(p, c))
      if (o.op->name == "all_reduce(tied)") {
        ++tied;
        EXPECT_EQ(p.groups[o.op->group].size, 2);
        EXPECT_EQ(p.groups[o.op->group].base(1), 0);
      }
  EXPECT_EQ(tied, 2);
}

TEST(Lower, OneForwardOneBackwardHoldsOneMicroBatchPerLaterStage) {
  const auto m = llama();
  const Program p = lower(uniform(m, 1, 4, 1, 8), m).value();
  for (const RankClass& c : p.classes) {
    int held = 0, most = 0;
    for (const OpInstance& o : unroll(p, c)) {
      if (o.op->name == "norm1" && o.layer == c.first_layer) {
        held += o.op->phase == Phase::kF ? 1 : -1;
        most = std::max(most, held);
      }
    }
    EXPECT_EQ(held, 0);
    EXPECT_EQ(most, 4 - c.stage);
  }
}

TEST(Lower, EverySegmentOfEveryFamilyHasWork) {
  for (const char* name : {"gpt2-tiny", "llama-tiny", "bert-large", "qwen2.5-7b"}) {
    const auto m = model::find_model(name).value();
    const Program p = lower(uniform(m, 1, 1, 2, 2), m).value();
    EXPECT_TRUE(check(p).empty()) << name;
    for (std::uint32_t i = 0; i < p.templates.size(); ++i)
      for (const Op& op : p.templates[TemplateId(i)].ops) {
        if (op.kind != OpKind::kCompute) continue;
        EXPECT_GT(model::work(p.segments[op.segment], op.phase).bytes.raw(), 0)
            << name << ": " << op.name;
      }
  }
}

}  // namespace
}  // namespace orrery::plan
