#include "model/launches.h"

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::model {
namespace {

using enum SegmentKind;
using enum Phase;

// Attention written out, of a block of queries: two products, scale, mask, softmax, and what goes
// into place; backward the scores again and five products. LibTorch's logsumexp is nine kernels.
constexpr int kLogSumExp = 9, kBlockForward = 11 + kLogSumExp, kBlockBackward = 18;
constexpr int kReach = 3, kSlopes = 4, kCap = 3, kCapBackward = 5;
// Norm of queries or keys: casts, sum of squares, gain; backward the gradients of both.
constexpr int kPartForward = 8, kPartBackward = 17;

// Scores of an index: product, ReLU, weighting, mask, the K-th largest; backward softmax of them,
// the heads' sum and four gradients. Beside them turning, the norm of keys and its gradients.
constexpr int kIndexForward = 14, kIndexBackward = 26, kIndexKeys = 12;

int written_out(const SegmentShape& s, Phase phase) {
  const int blocks = as_int(ceil_div(s.tokens, SegmentShape::kQueryRows));
  int block = phase == kF ? kBlockForward : kBlockBackward;
  if (s.index_heads > 0) block += phase == kF ? kIndexForward : kIndexBackward;
  if (s.reach > 0) block += kReach;
  if (s.alibi > 0) block += kSlopes;
  if (s.score_cap != 0) block += kCap + (phase == kF ? 0 : kCapBackward);
  const int turned = s.kind == kLatentAttention ? 2 : s.rotary ? 1 : 0;
  return blocks * block + turned + (phase == kF ? 2 : 6);
}

int attention(const SegmentShape& s, Phase phase) {
  if (s.explicit_core()) return written_out(s, phase);
  const bool grouped = s.kv_heads < s.heads && s.dtype != DType::kBFloat16;
  const int prepared = (s.rotary ? 1 : 0) + (grouped ? 2 : 0);
  if (phase == kF) return prepared + 1;
  return prepared + 3 + (grouped ? 2 : 0) + (packs_heads(s) ? 1 : 3);
}

int product(const SegmentShape& s, Phase phase) {
  if (phase == kF || phase == kB) return 1;
  const int gradient = s.bias ? 2 : 1;
  return phase == kG ? gradient : gradient + 1;
}

// Two gates are one kernel of ours; the others activation and product, backward their parts.
int activation(const SegmentShape& s, bool forward) {
  if (!s.gated || s.activation == Activation::kSilu || s.activation == Activation::kGeluTanh)
    return 1;
  return forward ? 2 : 4;
}

}  // namespace

std::int64_t rotated_dims(const SegmentShape& s) {
  if (s.rope_dim > 0) return s.rope_dim;
  return s.rope.dims > 0 ? s.rope.dims : s.head_dim;
}

bool packs_heads(const SegmentShape& s) {
  const std::int64_t turned = s.rotary ? rotated_dims(s) : s.head_dim;
  return s.kind == kAttention && !s.explicit_core() && s.weights == 0 && turned == s.head_dim &&
         s.head_dim % 2 == 0;
}

bool sums_columns(const SegmentShape& s, Phase phase) {
  if (phase != kB) return false;
  if (s.kind == kActivation)
    return s.activation == Activation::kSilu || s.activation == Activation::kGeluTanh;
  return packs_heads(s);
}

int launches(const SegmentShape& s, Phase phase) {
  const bool forward = phase == kF;
  switch (s.kind) {
    case kEmbedding: return phase == kB ? 0 : 1;  // B: of a frozen table
    case kPositionAdd: return forward ? 1 : 2;
    case kNorm: return 1;
    case kQkv:
    case kProjection:
    case kMlpIn:
    case kMlpOut:
    case kLatentProduct:
    case kAdapterIn:
    case kAdapterOut:
    case kLogits: return product(s, phase);
    case kLatentAttention: return 6 + (s.index_heads > 0 ? kIndexKeys : 0) + written_out(s, phase);
    case kHeadNorm: return 1 + 2 * (forward ? kPartForward : kPartBackward);
    case kAttention:
    case kAttentionSplit:
    case kAttentionBlock: return attention(s, phase);
    case kResidual: return forward || s.bias ? 1 : 0;
    case kActivation: return activation(s, forward);
    case kLoss: return forward ? 4 : 1;
    case kAttentionMerge:
    case kNormSums:
    case kNormApply:
    case kScores:
    case kSoftmax:
    case kValues: return 6;
    case kLoadTokens:
    case kLoadTargets: return 0;  // a copy from the host
    case kLossMax:
    case kLossSum:
    case kSlice:
    case kZeroGradient:
    case kAccumulate:
    case kAdamW:
    case kBias:
    case kRouter:
    case kDispatch:
    case kExpertIn:
    case kExpertOut:
    case kCombine:
    case kPatchProduct:
    case kScan:
    case kPool: return 1;
  }
  ORRERY_CHECK(false, "segment kind {}", as_int(s.kind));
}

}  // namespace orrery::model
