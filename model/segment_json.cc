/// \file
/// SegmentShape <-> JSON, from one table of fields per type.
#include <algorithm>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "model/config_fields.h"
#include "model/names.h"
#include "model/profile.h"

namespace orrery::model {
namespace {

using enum base::ErrorCode;

constexpr base::DoubleRange kSize{0, 0x1p50}, kPlace{0, 1 << 30}, kCount{1, 1 << 30};

using Shape = SegmentShape;
constexpr Field<Shape> kFields[] = {
    {"sequences", &Shape::sequences, kSize},
    {"tokens", &Shape::tokens, kSize},
    {"in", &Shape::in, kSize},
    {"out", &Shape::out, kSize},
    {"heads", &Shape::heads, kSize},
    {"kv_heads", &Shape::kv_heads, kSize},
    {"head_dim", &Shape::head_dim, kSize},
    {"elements", &Shape::elements, kSize},
    {"vocab", &Shape::vocab, kSize},
    {"kv_tokens", &Shape::kv_tokens, kSize},
    {"experts", &Shape::experts, kSize},
    {"top_k", &Shape::top_k, kSize},
    {"capacity", &Shape::capacity, kSize},
    {"dim", &Shape::dim, kPlace},
    {"parts", &Shape::parts, kCount},
    {"part_stride", &Shape::part_stride, kCount},
    {"ring_step", &Shape::ring_step, kPlace},
    {"token_parts", &Shape::token_parts, kCount},
    {"token_stride", &Shape::token_stride, kCount},
    {"token_chunks", &Shape::token_chunks, kCount},
    {"slices", &Shape::slices, kCount},
    {"slice", &Shape::slice, kPlace},
    {"gated", &Shape::gated},
    {"bias", &Shape::bias},
    {"rotary", &Shape::rotary},
    {"causal", &Shape::causal},
    {"residual", &Shape::residual},
    {"shared", &Shape::shared},
    {"reach", &Shape::reach, kSize},
    {"alibi", &Shape::alibi, kSize},
    {"value_dim", &Shape::value_dim, kSize},
    {"rope_dim", &Shape::rope_dim, kSize},
    {"index_heads", &Shape::index_heads, kSize},
    {"index_dim", &Shape::index_dim, kSize},
    {"state", &Shape::state, kSize},
    {"kernel", &Shape::kernel, kSize},
    {"chunk", &Shape::chunk, kSize},
    {"weights", &Shape::weights, kSize},
    {"chunked", &Shape::chunked},
    {"sinks", &Shape::sinks},
    {"delta", &Shape::delta},
    {"whole", &Shape::whole},
    {"gain", &Shape::gain},
    {"norm_bias", &Shape::norm_bias},
    {"score_cap", &Shape::score_cap, {0, 1e6}},
    {"score_scale", &Shape::score_scale, {0, 1e6}},
    {"epsilon", &Shape::epsilon, {1e-30, 0.1}},
    {"rope_theta", &Shape::rope_theta, {1.0, 1e12}},
};

/// Sizes without which a kind has no work: see the table of fields in segment.h.
std::vector<std::string_view> needed_sizes(SegmentKind kind) {
  using enum SegmentKind;
  switch (kind) {
    case kLoadTokens:
    case kLoadTargets: return {"sequences", "tokens"};
    case kEmbedding: return {"sequences", "tokens", "in", "out", "vocab"};
    case kPositionAdd:
    case kNorm:
    case kResidual:
    case kActivation:
    case kQkv:
    case kProjection:
    case kMlpIn:
    case kMlpOut:
    case kPatchProduct:
    case kLatentProduct:
    case kAdapterIn:
    case kAdapterOut:
    case kBias:
    case kNormSums:
    case kNormApply:
    case kLogits: return {"sequences", "tokens", "in", "out"};
    case kAttention:
    case kAttentionSplit: return {"sequences", "tokens", "heads", "kv_heads", "head_dim"};
    case kAttentionBlock:
    case kScores:
    case kSoftmax:
    case kValues: return {"sequences", "tokens", "heads", "kv_heads", "head_dim", "kv_tokens"};
    case kHeadNorm: return {"sequences", "tokens", "heads", "kv_heads", "head_dim"};
    case kLatentAttention:
      return {"sequences", "tokens", "heads", "head_dim", "value_dim", "rope_dim"};
    case kScan:
      return {"sequences", "tokens",   "in",    "out",  "heads",
              "kv_heads",  "head_dim", "state", "chunk"};
    case kPool: return {"sequences", "tokens", "in", "out", "kv_tokens"};
    case kAttentionMerge: return {"sequences", "tokens", "heads", "head_dim"};
    case kRouter: return {"sequences", "tokens", "in", "experts", "top_k"};
    case kDispatch:
    case kCombine: return {"sequences", "tokens", "in", "experts", "top_k", "capacity"};
    case kExpertIn:
    case kExpertOut: return {"sequences", "tokens", "in", "out", "experts", "capacity"};
    case kLossMax:
    case kLossSum:
    case kLoss: return {"sequences", "tokens", "out"};
    case kSlice:
    case kZeroGradient:
    case kAccumulate:
    case kAdamW: return {"elements"};
  }
  return {};
}

/// Largest tensor of the shape, in elements, at most; a double, because hostile sizes overflow.
double largest_tensor(const SegmentShape& s) {
  const double tokens = real(s.sequences) * real(s.tokens);
  const double columns =
      std::max({real(s.in) * real(s.slices), 2 * real(s.out), 4 * real(s.heads) * real(s.head_dim),
                (real(s.heads) + real(s.kv_heads)) * real(s.head_dim),
                2 * real(s.heads) * (2 * real(s.head_dim) + real(s.value_dim)),
                real(s.index_heads) * real(s.index_dim), real(s.kv_heads) * real(s.state), 1.0});
  const double states = tokens * real(s.heads) * real(s.head_dim) * real(s.state) /
                        real(std::max<std::int64_t>(s.chunk, 1));
  const bool windows = s.kind == SegmentKind::kAttention && s.weights > 0;
  const double scores = windows ? real(s.heads) * real(s.tokens) * real(s.tokens) : 0;
  const double rows = real(s.sequences) * real(s.experts) * real(s.capacity);
  const double routed = tokens * (real(s.experts) + real(s.top_k) + 1);
  const double weights = std::max(real(s.experts), 1.0) * real(s.in) * std::max(real(s.out), 1.0);
  return std::max({tokens * columns, real(s.sequences) * real(s.kv_tokens) * columns,
                   real(s.tokens) * real(s.in), weights, real(s.elements), rows * real(s.in),
                   routed, states, scores});
}

void check_sizes(base::Reader& r, const SegmentShape& s) {
  for (const std::string_view key : needed_sizes(s.kind)) {
    for (const Field<Shape>& field : kFields) {
      if (field.key != key || s.*std::get<std::int64_t Shape::*>(field.member) > 0) continue;
      r.error(key, kMissingKey, "a shape of kind '{}' needs a positive '{}'", to_string(s.kind),
              key);
    }
  }
  if (s.kind == SegmentKind::kLatentAttention && s.rope_dim >= s.head_dim)
    r.error("rope_dim", kOutOfRange, "rope_dim {} is no part of head_dim {}", s.rope_dim,
            s.head_dim);
  if (s.kind == SegmentKind::kLatentAttention && s.index_heads > 0) {
    for (const auto& [key, size] :
         {std::pair{"index_dim", s.index_dim}, {"top_k", s.top_k}, {"in", s.in}})
      if (size == 0) r.error(key, kMissingKey, "an indexer needs a positive '{}'", key);
  }
  if (s.slice >= s.slices) r.error("slice", kOutOfRange, "slice {} of {}", s.slice, s.slices);
  if (s.dtype == DType::kInt64)
    r.error("dtype", kBadValue, "segments compute in fp32 or bf16, not int64");
  if (largest_tensor(s) > kSize.max) {
    r.error("kind", kOutOfRange, "the sizes make a tensor of {:.2g} elements", largest_tensor(s));
  }
}

/// Those that need not be stated.
base::Json every_field(const SegmentShape& s) {
  base::Json json = fields_to_json(s, kFields);
  json["norm"] = to_string(s.norm);
  json["activation"] = to_string(s.activation);
  return json;
}

}  // namespace

base::Result<SegmentShape> read_segment_shape(const base::Node& node) {
  base::ErrorSink sink;
  base::Reader r(node, "shape", sink);
  SegmentShape s;
  s.kind = r.required_enum("kind", names_up_to(kLastSegmentKind));
  s.dtype = r.required_enum("dtype", names_up_to(DType::kInt64));
  s.norm = r.optional_enum("norm", names_up_to(NormKind::kRmsNorm)).value_or(s.norm);
  s.activation = r.optional_enum("activation", names_up_to(kLastActivation)).value_or(s.activation);
  read_fields(r, kFields, s, Fields::kOptional);
  r.finish();
  if (sink.ok()) check_sizes(r, s);
  return sink.result(s);
}

base::Json to_json(const SegmentShape& s) {
  static const base::Json kDefaults = every_field(SegmentShape{});
  base::Json json{{"kind", to_string(s.kind)}, {"dtype", to_string(s.dtype)}};
  const base::Json fields = every_field(s);
  for (const auto& [key, value] : fields.items()) {
    if (value != kDefaults[key]) json[key] = value;
  }
  return json;
}

}  // namespace orrery::model
