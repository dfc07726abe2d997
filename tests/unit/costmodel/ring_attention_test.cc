// What zig-zag order is for: under a causal mask a ring's ranks have equal work, and no more of it
// than as many tensor-parallel ranks.
#include <gtest/gtest.h>

#include "costmodel/cost_model.h"
#include "costmodel/profiles/profiles.h"
#include "plan/lowering/lower.h"
#include "topologies/topology.h"

namespace orrery::costmodel {
namespace {

using model::SegmentKind;

/// Of one layer and sequence, forward and backward.
std::int64_t attention_ps(const CostModel& cost, const plan::LayerStrategy& strategy) {
  plan::LayerContext context;
  context.sequence = cost.options().sequence;
  context.micro_batch_sequences = context.global_batch = 1;
  const plan::LayerTemplates t = plan::lower_block(cost.model(), strategy, context);
  std::int64_t sum = 0;
  for (const plan::TemplateId id : {t.forward, t.backward}) {
    for (const plan::Op& op : t.program.templates[id].ops) {
      if (op.kind != plan::OpKind::kCompute) continue;
      const model::SegmentShape& shape = t.program.segments[op.segment];
      if (shape.kind == SegmentKind::kAttention || shape.kind == SegmentKind::kAttentionBlock)
        sum += cost.segment_ps(shape, op.phase);
    }
  }
  return sum;
}

TEST(RingAttention, CostsAsMuchAsOverTensorRanks) {
  const auto cluster = *topologies::catalog_topology("dgx-h100");
  const model::ModelSpec model = *model::find_model("llama-3.1-8b");
  const auto cost = CostModel::make(model, cluster, *device_profile(cluster, model),
                                    {model::Precision::kBFloat16, 131'072})
                        .value();
  const std::int64_t tensor = attention_ps(cost, {.tp = 8}), ring = attention_ps(cost, {.cp = 8});
  EXPECT_GT(ring, tensor);
  EXPECT_LE(static_cast<double>(ring), 1.05 * static_cast<double>(tensor));
}

}  // namespace
}  // namespace orrery::costmodel
