#include "model/segment.h"

namespace orrery::model {

std::string_view to_string(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::kLoadTokens: return "load_tokens";
    case SegmentKind::kLoadTargets: return "load_targets";
    case SegmentKind::kEmbedding: return "embedding";
    case SegmentKind::kPositionAdd: return "position_add";
    case SegmentKind::kNorm: return "norm";
    case SegmentKind::kQkv: return "qkv";
    case SegmentKind::kAttention: return "attention";
    case SegmentKind::kAttentionSplit: return "attention_split";
    case SegmentKind::kAttentionBlock: return "attention_block";
    case SegmentKind::kAttentionMerge: return "attention_merge";
    case SegmentKind::kProjection: return "projection";
    case SegmentKind::kResidual: return "residual";
    case SegmentKind::kMlpIn: return "mlp_in";
    case SegmentKind::kActivation: return "activation";
    case SegmentKind::kMlpOut: return "mlp_out";
    case SegmentKind::kLogits: return "logits";
    case SegmentKind::kLossMax: return "loss_max";
    case SegmentKind::kLossSum: return "loss_sum";
    case SegmentKind::kLoss: return "loss";
    case SegmentKind::kSlice: return "slice";
    case SegmentKind::kZeroGradient: return "zero_gradient";
    case SegmentKind::kAccumulate: return "accumulate";
    case SegmentKind::kAdamW: return "adamw";
    case SegmentKind::kRouter: return "router";
    case SegmentKind::kDispatch: return "dispatch";
    case SegmentKind::kExpertIn: return "expert_in";
    case SegmentKind::kExpertOut: return "expert_out";
    case SegmentKind::kCombine: return "combine";
    case SegmentKind::kPatchProduct: return "patch_product";
    case SegmentKind::kPool: return "pool";
  }
  return "";
}

std::string_view to_string(Phase phase) {
  switch (phase) {
    case Phase::kF: return "F";
    case Phase::kB: return "B";
    case Phase::kG: return "G";
    case Phase::kBG: return "BG";
  }
  return "";
}

}  // namespace orrery::model
