// Strided layers: the data group on neighbouring ranks, the tensor group across.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "plan/lowering/lower.h"

namespace orrery::plan {
namespace {

using testing::ElementsAre;

constexpr std::int64_t kSequence = 64, kSequences = 8;

model::ModelSpec llama() { return model::find_model("llama-tiny").value(); }
LayerContext context() {
  LayerContext c;
  c.precision = model::Precision::kFloat32;
  c.sequence = kSequence;
  c.micro_batch_sequences = kSequences;
  c.micro_batches = 2;
  c.global_batch = 16;
  return c;
}
/// "name size x stride bytes" of collectives, "name dim part / parts x stride" of slices.
std::vector<std::string> moves(const LayerTemplates& t, TemplateId id) {
  std::vector<std::string> all;
  for (const Op& op : t.program.templates[id].ops) {
    if (op.kind == OpKind::kCollective) {
      const Group& g = t.program.groups[op.group];
      all.push_back(fmt::format("{} {}x{} {}", op.name, g.size, g.stride, op.bytes));
    } else if (const model::SegmentShape& s = t.program.segments[op.segment];
               s.kind == model::SegmentKind::kSlice) {
      all.push_back(fmt::format("{} dim {} of {}x{}", op.name, s.dim, s.parts, s.part_stride));
    }
  }
  return all;
}

TEST(Strided, ReplicasAreNeighboursAndTensorRanksLieAcross) {
  const LayerTemplates t =
      lower_block(llama(), {.tp = 2, .dp = 4, .zero = 1, .shard = 2, .strided = true}, context());
  const ParameterUnit& u = t.program.units[UnitId(0)];
  EXPECT_EQ(t.program.groups[u.tensor_group], (Group{"tensor", 2, 4}));
  EXPECT_EQ(t.program.groups[u.data_group], (Group{"data", 4, 1}));
  EXPECT_EQ(t.program.groups[u.shard_group], (Group{"shard", 2, 1}));
  EXPECT_EQ(t.program.groups[u.replica_group], (Group{"replica", 2, 2}));
}

TEST(Strided, ContextRanksAreTheInnermostReplicas) {
  const LayerTemplates t = lower_block(
      llama(), {.tp = 2, .dp = 2, .cp = 2, .context = ContextKind::kUlysses, .strided = true},
      context());
  const std::int64_t qkv = kSequences / 2 * (kSequence / 2) * llama().qkv_features() / 2 * 4;
  EXPECT_EQ(moves(t, t.forward).front(), fmt::format("all_to_all(qkv) 2x1 {}", qkv));
  const LayerTemplates head =
      lower_head(llama(), {.tp = 2, .dp = 2, .cp = 2, .strided = true}, context());
  for (const model::SegmentShape& s : head.program.segments) {
    if (s.kind == model::SegmentKind::kLoadTargets) {
      EXPECT_EQ(std::tuple(s.parts, s.part_stride, s.token_parts, s.token_stride),
                std::tuple(2, 2, 2, 1));
    }
    if (s.kind == model::SegmentKind::kLoss) {
      EXPECT_EQ(std::tuple(s.parts, s.part_stride), std::tuple(2, 4));  // shard of the vocabulary
    }
  }
}

TEST(Strided, ReshardingFromConsecutiveGathersTheBatchAndCutsItsOwnShare) {
  const std::int64_t whole = kSequences * kSequence * llama().hidden * 4;
  const LayerStrategy consecutive{.tp = 2, .dp = 2}, strided{.tp = 2, .dp = 2, .strided = true};
  const LayerTemplates t = lower_reshard(llama(), consecutive, strided, context());
  EXPECT_THAT(moves(t, t.forward), ElementsAre(fmt::format("all_gather(x batch) 2x2 {}", whole),
                                               "slice(x) dim 0 of 2x1"));
  EXPECT_THAT(moves(t, t.backward), ElementsAre(fmt::format("all_gather(dx batch) 2x1 {}", whole),
                                                "slice(dx) dim 0 of 2x2"));
}

TEST(Strided, OverOneTensorRankOrOneReplicaIsConsecutive) {
  for (const auto& [a, b] :
       {std::pair<LayerStrategy, LayerStrategy>{{.dp = 4}, {.dp = 4, .strided = true}},
        {{.tp = 4}, {.tp = 4, .strided = true}}}) {
    const LayerTemplates t = lower_reshard(llama(), a, b, context());
    EXPECT_THAT(moves(t, t.forward), ElementsAre());
  }
}

}  // namespace
}  // namespace orrery::plan
