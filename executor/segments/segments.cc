#include "executor/segments/segments.h"

#include "executor/segments/segment_kernels.h"
#include "executor/state/data.h"

namespace orrery::executor {

using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

namespace {

base::Result<void> load(const SegmentShape& s, Operands& operands, SegmentContext& context) {
  ORRERY_CHECK(context.data != nullptr);
  at::Tensor ids = empty({s.sequences, s.tokens}, model::DType::kInt64, at::kCPU);
  const Batch batch{.seed = context.seed,
                    .step = context.step,
                    .global_batch = context.global_batch,
                    .first_sequence = context.first_sequence,
                    .sequences = s.sequences,
                    .tokens = s.tokens,
                    .token_parts = s.token_parts,
                    .token_part = context.token_part(s)};
  const std::int64_t shift = s.kind == SegmentKind::kLoadTargets ? 1 : 0;
  TRY_VOID(context.data->read(
      batch, shift, {ids.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(ids.numel())}));
  Output& out = operands.writes[0];
  out.tensor = out.device.is_cpu() ? ids : ids.to(out.device);
  return {};
}

}  // namespace

bool has_segment(const SegmentShape& shape, Phase phase) {
  switch (shape.kind) {
    case SegmentKind::kLoadTokens:
    case SegmentKind::kLoadTargets:
    case SegmentKind::kLossMax:
    case SegmentKind::kLossSum:
    case SegmentKind::kSlice: return phase == Phase::kF;
    case SegmentKind::kZeroGradient:
    case SegmentKind::kAccumulate:
    case SegmentKind::kAdamW:
    case SegmentKind::kNorm:
    case SegmentKind::kQkv:
    case SegmentKind::kProjection:
    case SegmentKind::kMlpIn:
    case SegmentKind::kMlpOut:
    case SegmentKind::kLogits: return true;
    case SegmentKind::kEmbedding:
    case SegmentKind::kPositionAdd:
    case SegmentKind::kResidual: return phase != Phase::kB;
    case SegmentKind::kAttention:
      return phase != Phase::kG && (!shape.rotary || shape.head_dim % 2 == 0);
    case SegmentKind::kAttentionSplit:
      return phase != Phase::kG && (!shape.rotary || shape.head_dim % 2 == 0);
    case SegmentKind::kAttentionBlock: return phase != Phase::kG && shape.kv_tokens == shape.tokens;
    case SegmentKind::kAttentionMerge: return phase == Phase::kF;
    case SegmentKind::kActivation:
    case SegmentKind::kLoss: return phase != Phase::kG;
    case SegmentKind::kRouter:
    case SegmentKind::kDispatch:
    case SegmentKind::kExpertIn:
    case SegmentKind::kExpertOut:
    case SegmentKind::kCombine:
    case SegmentKind::kPatchProduct:
    case SegmentKind::kPool: return false;
  }
  ORRERY_CHECK(false, "segment kind {}", static_cast<int>(shape.kind));
}

base::Result<void> run_segment(const SegmentShape& shape, Phase phase, Operands& operands,
                               SegmentContext& context) {
  if (!has_segment(shape, phase)) {
    return base::fail(base::ErrorCode::kUnsupported, "segment {} has no phase {} in the executor",
                      model::to_string(shape.kind), model::to_string(phase));
  }
  switch (shape.kind) {
    case SegmentKind::kLoadTokens:
    case SegmentKind::kLoadTargets: return load(shape, operands, context);
    case SegmentKind::kEmbedding: kernels::embedding(shape, phase, operands, context); break;
    case SegmentKind::kPositionAdd: kernels::position_add(shape, phase, operands, context); break;
    case SegmentKind::kNorm: kernels::norm(shape, phase, operands); break;
    case SegmentKind::kQkv:
    case SegmentKind::kProjection:
    case SegmentKind::kMlpIn:
    case SegmentKind::kMlpOut:
    case SegmentKind::kLogits: kernels::linear(shape, phase, operands); break;
    case SegmentKind::kAttention: kernels::attention(shape, phase, operands, context); break;
    case SegmentKind::kAttentionSplit:
      kernels::attention_split(shape, phase, operands, context);
      break;
    case SegmentKind::kAttentionBlock:
      kernels::attention_block(shape, phase, operands, context);
      break;
    case SegmentKind::kAttentionMerge: kernels::attention_merge(shape, operands); break;
    case SegmentKind::kResidual: kernels::residual(shape, phase, operands); break;
    case SegmentKind::kActivation: kernels::activation(shape, phase, operands); break;
    case SegmentKind::kLossMax: kernels::loss_max(shape, operands, context); break;
    case SegmentKind::kLossSum: kernels::loss_sum(shape, operands, context); break;
    case SegmentKind::kLoss: kernels::loss(shape, phase, operands, context); break;
    case SegmentKind::kSlice: kernels::slice(shape, operands, context); break;
    case SegmentKind::kZeroGradient: kernels::zero_gradient(operands); break;
    case SegmentKind::kAccumulate: kernels::accumulate(operands); break;
    case SegmentKind::kAdamW: kernels::adamw(shape, operands, context); break;
    case SegmentKind::kRouter:
    case SegmentKind::kDispatch:
    case SegmentKind::kExpertIn:
    case SegmentKind::kExpertOut:
    case SegmentKind::kCombine:
    case SegmentKind::kPatchProduct:
    case SegmentKind::kPool: ORRERY_CHECK(false, "has_segment says no");
  }
  return {};
}

}  // namespace orrery::executor
