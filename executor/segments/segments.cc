#include "executor/segments/segments.h"

#include <algorithm>
#include <iterator>

#include "base/numbers.h"
#include "executor/segments/segment_kernels.h"
#include "executor/state/data.h"
#include "executor/state/images.h"
#include "model/scan.h"

namespace orrery::executor {

using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

namespace {

base::Result<void> load_text(const SegmentShape& s, const SegmentContext& context,
                             std::span<std::int64_t> out) {
  ORRERY_CHECK(context.data != nullptr);
  const Batch batch{.seed = context.seed,
                    .step = context.step,
                    .global_batch = context.global_batch,
                    .first_sequence = context.first_sequence,
                    .sequences = s.sequences,
                    .tokens = s.tokens,
                    .token_parts = s.token_parts,
                    .token_part = context.token_part(s),
                    .token_chunks = s.token_chunks,
                    .masked = !s.causal && s.kv_tokens == 0,
                    .encoder_tokens = s.kv_tokens,
                    .to_encoder = !s.causal && s.kv_tokens > 0};
  const TokenData::What what = s.kind == model::SegmentKind::kLoadTargets
                                   ? TokenData::What::kTargets
                                   : TokenData::What::kTokens;
  return context.data->read(batch, what, out);
}

ImageBatch images_of(const SegmentShape& s, const SegmentContext& context) {
  return {.seed = context.seed,
          .first = context.step * context.global_batch + context.first_sequence,
          .images = s.sequences,
          .classes = s.vocab,
          .patch_features = s.in,
          .blank_tokens = s.kv_tokens};
}

/// What a step reads from outside, made on the host: ids of tokens or made-up images, and their
/// targets. A device gets a copy.
base::Result<void> load(const SegmentShape& s, Operands& o, const SegmentContext& context) {
  Output& out = o.writes[0];
  const bool ids = out.dtype == model::DType::kInt64;
  at::Tensor made = empty(out.shape, ids ? out.dtype : model::DType::kFloat32, at::kCPU);
  const auto span = [&]<class T>(T) {
    return std::span<T>(made.mutable_data_ptr<T>(), as_index(made.numel()));
  };
  if (s.in == 0)
    TRY_VOID(load_text(s, context, span(std::int64_t{})));
  else if (ids)
    make_classes(images_of(s, context), span(std::int64_t{}));
  else
    make_pixels(images_of(s, context), span(0.0F));
  out.tensor = made.to(out.device, scalar_type(out.dtype));
  return {};
}

constexpr unsigned bit(Phase phase) { return 1U << static_cast<unsigned>(phase); }
constexpr unsigned kForward = bit(Phase::kF),
                   kEvery = kForward | bit(Phase::kB) | bit(Phase::kG) | bit(Phase::kBG),
                   kNotB = kEvery & ~bit(Phase::kB), kNotG = kEvery & ~bit(Phase::kG),
                   kNotBG = kEvery & ~bit(Phase::kBG);

struct Segment {
  SegmentKind kind;
  unsigned phases;
  kernels::Kernel* kernel;  // null: load()
};
constexpr Segment kSegments[] = {
    {SegmentKind::kLoadTokens, kForward, nullptr},
    {SegmentKind::kLoadTargets, kForward, nullptr},
    {SegmentKind::kEmbedding, kEvery, kernels::embedding},
    {SegmentKind::kPositionAdd, kNotB, kernels::position_add},
    {SegmentKind::kNorm, kEvery, kernels::norm},
    {SegmentKind::kQkv, kEvery, kernels::linear},
    {SegmentKind::kProjection, kEvery, kernels::linear},
    {SegmentKind::kMlpIn, kEvery, kernels::linear},
    {SegmentKind::kMlpOut, kEvery, kernels::linear},
    {SegmentKind::kLogits, kEvery, kernels::linear},
    {SegmentKind::kAttention, kNotG, kernels::attention},
    {SegmentKind::kAttentionSplit, kNotG, kernels::attention_split},
    {SegmentKind::kAttentionBlock, kNotG, kernels::attention_block},
    {SegmentKind::kAttentionMerge, kForward, kernels::attention_merge},
    {SegmentKind::kResidual, kNotB, kernels::residual},
    {SegmentKind::kActivation, kNotG, kernels::activation},
    {SegmentKind::kLossMax, kForward, kernels::loss_max},
    {SegmentKind::kLossSum, kForward, kernels::loss_sum},
    {SegmentKind::kLoss, kNotG, kernels::loss},
    {SegmentKind::kBias, kForward | bit(Phase::kG), kernels::bias},
    {SegmentKind::kNormSums, kForward | bit(Phase::kB), kernels::norm_sums},
    {SegmentKind::kNormApply, kEvery, kernels::norm_apply},
    {SegmentKind::kScores, kNotBG, kernels::scores},
    {SegmentKind::kSoftmax, kForward | bit(Phase::kB), kernels::softmax},
    {SegmentKind::kValues, kNotBG, kernels::values},
    {SegmentKind::kHeadNorm, kEvery & ~bit(Phase::kG), kernels::head_norm},
    {SegmentKind::kLatentAttention, kNotG, kernels::latent_attention},
    {SegmentKind::kScan, kNotG, kernels::scan},
    {SegmentKind::kLatentProduct, kEvery, kernels::linear},
    {SegmentKind::kAdapterIn, kNotG, kernels::adapter_in},
    {SegmentKind::kAdapterOut, kNotG, kernels::adapter_out},
    {SegmentKind::kRouter, kEvery, kernels::router},
    {SegmentKind::kDispatch, kNotG, kernels::dispatch},
    {SegmentKind::kExpertIn, kEvery, kernels::expert_product},
    {SegmentKind::kExpertOut, kEvery, kernels::expert_product},
    {SegmentKind::kCombine, kNotG, kernels::combine},
    {SegmentKind::kPatchProduct, kEvery, kernels::linear},
    {SegmentKind::kPool, kForward | bit(Phase::kB), kernels::pool},
    {SegmentKind::kSlice, kForward, kernels::slice},
    {SegmentKind::kZeroGradient, kEvery, kernels::zero_gradient},
    {SegmentKind::kAccumulate, kEvery, kernels::accumulate},
    {SegmentKind::kAdamW, kEvery, kernels::adamw}};

/// Null: none implements it.
const Segment* find(SegmentKind kind) {
  const auto* at = std::ranges::find(kSegments, kind, &Segment::kind);
  return at == std::end(kSegments) ? nullptr : at;
}

/// On the CPU, what a device does in the launch of an operation that made `result`.
base::Result<void> run_behind(Joining& next, const at::Tensor& result, SegmentContext& context) {
  if (next.what == plan::Joined::kBias) {
    kernels::add_bias_gradient(next.operands.gradients.back(), kernels::rows_of(result));
    return {};
  }
  next.operands.reads = {result};
  return run_segment(*next.shape, next.phase, next.operands, context);
}

}  // namespace

bool has_segment(const SegmentShape& shape, Phase phase) {
  const Segment* segment = find(shape.kind);
  if (segment == nullptr || (segment->phases & bit(phase)) == 0) return false;
  switch (shape.kind) {
    case SegmentKind::kAttention:
      if (shape.alibi > 0 && shape.heads * shape.parts != shape.alibi) return false;
      if (shape.explicit_core() && shape.token_chunks > 1) return false;
      [[fallthrough]];
    case SegmentKind::kScores:
    case SegmentKind::kAttentionSplit: return !shape.rotary || shape.head_dim % 2 == 0;
    case SegmentKind::kLatentAttention:
      return shape.head_dim % 2 == 0 && (phase != Phase::kBG || shape.index_heads > 0);
    case SegmentKind::kAttentionBlock: return shape.kv_tokens == shape.tokens;
    case SegmentKind::kExpertIn:
    case SegmentKind::kExpertOut: return shape.format == model::Format::kNone;
    // Lightning attention's norm is over all heads.
    case SegmentKind::kScan: return !model::is_lightning(shape) || shape.parts == 1;
    case SegmentKind::kNorm: return shape.gain || !shape.norm_bias;
    default: return true;
  }
}

bool fills_outputs(const SegmentShape& shape, Phase phase, const at::Device& device) {
  switch (shape.kind) {
    case SegmentKind::kLoadTokens:
    case SegmentKind::kLoadTargets:
    case SegmentKind::kSoftmax: return false;
    case SegmentKind::kAttention:
    case SegmentKind::kAttentionBlock:
    case SegmentKind::kLatentAttention: return phase != Phase::kF;
    case SegmentKind::kNorm: return !device.is_cpu();
    case SegmentKind::kActivation: return shape.activation != model::Activation::kClampedSwiglu;
    default: return true;
  }
}

base::Result<void> run_segment(const SegmentShape& shape, Phase phase, Operands& operands,
                               SegmentContext& context) {
  if (!has_segment(shape, phase)) {
    return base::fail(base::ErrorCode::kUnsupported, "segment {} has no phase {} in the executor",
                      model::to_string(shape.kind), model::to_string(phase));
  }
  kernels::Kernel* const kernel = find(shape.kind)->kernel;
  if (kernel == nullptr) return load(shape, operands, context);
  const bool quantised = shape.format != model::Format::kNone;
  if (quantised && kernel == kernels::linear)
    kernels::quantised_linear(shape, phase, operands, context);
  else if (quantised && phase == Phase::kF && !operands.writes.empty() &&
           is_quantised(operands.writes[0].dtype))
    kernels::quantised_result(shape, kernel, operands, context);
  else
    kernel(shape, phase, operands, context);
  Joining* const next = std::exchange(context.behind, nullptr);
  if (next == nullptr) return {};
  ORRERY_CHECK(operands.reads[0].is_cpu(), "'{}' launches nothing else on a device",
               model::to_string(shape.kind));
  return run_behind(*next, operands.writes[0].tensor, context);
}

}  // namespace orrery::executor
