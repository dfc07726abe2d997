#include "costmodel/compute/kernels.h"

#include "base/check.h"
#include "base/numbers.h"
#include "costmodel/compute/price_factors.h"

namespace orrery::costmodel {
namespace {

using enum model::SegmentKind;
using enum model::Phase;
using model::Format;
using model::Phase;
using model::SegmentShape;

int quantising_kernels(Format format) {
  switch (format) {
    case Format::kNone: return 0;
    case Format::kFp8Delayed:
    case Format::kFp8Block: return 1;
    case Format::kMxFp8: return 2;
    case Format::kFp8Current:
    case Format::kNvFp4: return 3;
  }
  ORRERY_CHECK(false, "format {}", as_int(format));
}

int expert_bias_kernels(const SegmentShape& s, Phase phase) {
  if (phase == kB) return 0;
  return (phase == kF ? 2 : 5) * as_int(s.experts) + 2;
}

int product_kernels(const SegmentShape& s, Phase phase) {
  const bool experts = s.kind == kExpertIn || s.kind == kExpertOut;
  const int matrices = experts ? as_int(s.experts) : 1;
  const int products = phase == kBG ? 2 : 1, quantising = quantising_kernels(s.format);
  if (s.kind == kExpertOut && s.bias)
    return matrices * (products + quantising) + expert_bias_kernels(s, phase);
  const int bias = s.bias && (phase == kG || phase == kBG) ? 1 : 0;
  return matrices * (products + bias + quantising);
}

int scan_kernels(const SegmentShape& s, bool forward) {
  if (s.kernel == 0) return forward ? 3 : 6;
  if (s.delta) return forward ? 18 : 22;
  return forward ? 7 : 22;
}

int clamp_kernels(const SegmentShape& s, bool forward, const model::Framework& framework) {
  if (s.kind != kActivation || s.activation != model::Activation::kClampedSwiglu) return 0;
  return framework.clamp_bytes == 0 ? 0 : forward ? 3 : 7;
}

int stream_kernels(const SegmentShape& s, Phase phase) {
  const bool forward = phase == kF;
  switch (s.kind) {
    case kLoadTokens:
    case kLoadTargets:
    case kSlice:
    case kZeroGradient:
    case kAccumulate:
    case kAdamW: return 1;
    case kNorm:
    case kActivation: return forward ? 1 : 2;
    case kNormApply: return forward ? 1 : 2;
    case kBias:
    case kNormSums:
    case kSoftmax: return 1;
    case kResidual: return 2;
    case kEmbedding:
    case kPositionAdd: return phase == kB ? 0 : 4;
    case kLossMax: return 2;
    case kLossSum: return 8;
    case kLoss: return 6;
    case kScan: return scan_kernels(s, forward);
    default: return forward ? 3 : 6;  // routing and ring attention: a few small operations
  }
}

int attention_kernels(const SegmentShape& s, bool forward, const model::Framework& framework) {
  if (framework.attention != model::AttentionKernel::kExplicit)
    return (forward ? 2 : 4) + (s.rotary ? 1 : 0);
  return (forward ? 6 : 8) + (framework.dropout ? 1 : 0);
}

}  // namespace

int issued_kernels(const SegmentShape& s, Phase phase, const model::Framework& framework) {
  const auto work = model::work(s, phase);
  if (work.flops.raw() == 0 && work.bytes.raw() == 0) return 0;
  switch (work_kind(s.kind)) {
    case WorkKind::kProduct: return product_kernels(s, phase);
    case WorkKind::kAttention: return attention_kernels(s, phase == kF, framework);
    case WorkKind::kStream: break;
  }
  return stream_kernels(s, phase) + clamp_kernels(s, phase == kF, framework);
}

}  // namespace orrery::costmodel
