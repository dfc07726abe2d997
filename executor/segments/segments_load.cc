/// What a step reads from outside: ids of tokens, or made-up images, and their targets. Made on the
/// host; a device gets a copy.
#include "base/numbers.h"
#include "executor/segments/segment_kernels.h"
#include "executor/state/data.h"
#include "executor/state/images.h"

namespace orrery::executor::kernels {
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

}  // namespace

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

}  // namespace orrery::executor::kernels
