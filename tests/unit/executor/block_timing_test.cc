#include "executor/measure/block_timing.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace orrery::executor {
namespace {

TEST(BlockTiming, IsOfForwardAndBackwardAlone) {
  BlockCase block{.model = model::find_model("gpt2-tiny").value(), .sequences = 2, .tokens = 16};
  block.model.layers = 1;
  block.model.hidden = 32;
  block.model.heads = 2;
  block.model.kv_heads = 2;
  block.model.head_dim = 16;
  block.model.ffn = 64;
  block.model.max_positions = 16;
  const auto timings = time_blocks({block}, "cpu", model::Precision::kFloat32);
  ASSERT_TRUE(timings.has_value()) << base::to_string(timings.error());
  const BlockTiming& t = timings->front();
  EXPECT_GT(t.seconds, 0);
  const auto count = [&](auto&& test) { return std::ranges::count_if(t.operations, test); };
  // One optimizer step for two micro-batches: it belongs to neither.
  EXPECT_EQ(count([](const auto& op) {
              return op.shape.kind == model::SegmentKind::kAdamW ||
                     op.shape.kind == model::SegmentKind::kZeroGradient;
            }),
            0);
  // LayerNorm, QKV, attention, projection, residual, LayerNorm, MLP in, activation, MLP out,
  // residual.
  EXPECT_EQ(count([](const auto& op) { return op.phase == model::Phase::kF; }), 10);
  EXPECT_EQ(count([](const auto& op) { return op.shape.kind == model::SegmentKind::kAttention; }),
            2);
}

}  // namespace
}  // namespace orrery::executor
