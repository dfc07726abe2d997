#include "model/segment.h"

#include "base/ids.h"

namespace orrery::model {
namespace {

constexpr base::EnumNames<kLastSegmentKind> kKinds(
    "load_tokens", "load_targets", "embedding", "position_add", "norm", "qkv", "attention",
    "attention_split", "attention_block", "attention_merge", "projection", "residual", "mlp_in",
    "activation", "mlp_out", "logits", "loss_max", "loss_sum", "loss", "slice", "zero_gradient",
    "accumulate", "adamw", "router", "dispatch", "expert_in", "expert_out", "combine",
    "patch_product", "pool", "bias", "norm_sums", "norm_apply", "scores", "softmax", "values",
    "head_norm", "latent_attention", "scan", "latent_product", "adapter_in", "adapter_out");

}  // namespace

std::string_view to_string(SegmentKind kind) { return kKinds[kind]; }
std::string_view to_string(Phase phase) {
  return base::EnumNames<Phase::kBG>("F", "B", "G", "BG")[phase];
}

}  // namespace orrery::model
