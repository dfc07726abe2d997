#include "model/segment.h"

#include "base/numbers.h"

namespace orrery::model {
namespace {

// In the order of the enumerators.
constexpr std::string_view kKinds[] = {"load_tokens",
                                       "load_targets",
                                       "embedding",
                                       "position_add",
                                       "norm",
                                       "qkv",
                                       "attention",
                                       "attention_split",
                                       "attention_block",
                                       "attention_merge",
                                       "projection",
                                       "residual",
                                       "mlp_in",
                                       "activation",
                                       "mlp_out",
                                       "logits",
                                       "loss_max",
                                       "loss_sum",
                                       "loss",
                                       "slice",
                                       "zero_gradient",
                                       "accumulate",
                                       "adamw",
                                       "router",
                                       "dispatch",
                                       "expert_in",
                                       "expert_out",
                                       "combine",
                                       "patch_product",
                                       "pool"};
static_assert(std::size(kKinds) == as_index(kLastSegmentKind) + 1);
constexpr std::string_view kPhases[] = {"F", "B", "G", "BG"};

}  // namespace

std::string_view to_string(SegmentKind kind) { return kKinds[as_index(kind)]; }
std::string_view to_string(Phase phase) { return kPhases[as_index(phase)]; }

}  // namespace orrery::model
