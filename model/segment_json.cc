/// \file
/// SegmentShape <-> JSON, from one table of fields per type.
#include <algorithm>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/names.h"
#include "model/profile.h"

namespace orrery::model {
namespace {

using base::ErrorCode;

struct SizeField {
  std::string_view key;
  std::int64_t SegmentShape::*member;
};
constexpr SizeField kSizes[] = {
    {"sequences", &SegmentShape::sequences},
    {"tokens", &SegmentShape::tokens},
    {"in", &SegmentShape::in},
    {"out", &SegmentShape::out},
    {"heads", &SegmentShape::heads},
    {"kv_heads", &SegmentShape::kv_heads},
    {"head_dim", &SegmentShape::head_dim},
    {"elements", &SegmentShape::elements},
    {"vocab", &SegmentShape::vocab},
    {"kv_tokens", &SegmentShape::kv_tokens},
    {"experts", &SegmentShape::experts},
    {"top_k", &SegmentShape::top_k},
    {"capacity", &SegmentShape::capacity},
};
struct PartField {
  std::string_view key;
  int SegmentShape::*member;
  int min;
};
constexpr PartField kParts[] = {{"dim", &SegmentShape::dim, 0},
                                {"parts", &SegmentShape::parts, 1},
                                {"part_stride", &SegmentShape::part_stride, 1},
                                {"ring_step", &SegmentShape::ring_step, 0},
                                {"token_parts", &SegmentShape::token_parts, 1},
                                {"token_stride", &SegmentShape::token_stride, 1},
                                {"slices", &SegmentShape::slices, 1},
                                {"slice", &SegmentShape::slice, 0}};
struct FlagField {
  std::string_view key;
  bool SegmentShape::*member;
};
constexpr FlagField kFlags[] = {
    {"gated", &SegmentShape::gated},       {"bias", &SegmentShape::bias},
    {"rotary", &SegmentShape::rotary},     {"causal", &SegmentShape::causal},
    {"residual", &SegmentShape::residual}, {"shared", &SegmentShape::shared}};
struct RealField {
  std::string_view key;
  double SegmentShape::*member;
  base::DoubleRange range;
};
constexpr RealField kReals[] = {{"epsilon", &SegmentShape::epsilon, {1e-30, 0.1}},
                                {"rope_theta", &SegmentShape::rope_theta, {1.0, 1e12}}};

constexpr base::IntRange kSizeRange{0, std::int64_t{1} << 50};

/// Sizes without which a kind has no work: see the table of fields in segment.h.
std::vector<std::string_view> needed_sizes(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::kLoadTokens:
    case SegmentKind::kLoadTargets: return {"sequences", "tokens"};
    case SegmentKind::kEmbedding: return {"sequences", "tokens", "in", "out", "vocab"};
    case SegmentKind::kPositionAdd:
    case SegmentKind::kNorm:
    case SegmentKind::kResidual:
    case SegmentKind::kActivation:
    case SegmentKind::kQkv:
    case SegmentKind::kProjection:
    case SegmentKind::kMlpIn:
    case SegmentKind::kMlpOut:
    case SegmentKind::kPatchProduct:
    case SegmentKind::kLogits: return {"sequences", "tokens", "in", "out"};
    case SegmentKind::kAttention:
    case SegmentKind::kAttentionSplit:
      return {"sequences", "tokens", "heads", "kv_heads", "head_dim"};
    case SegmentKind::kAttentionBlock:
      return {"sequences", "tokens", "heads", "kv_heads", "head_dim", "kv_tokens"};
    case SegmentKind::kPool: return {"sequences", "tokens", "in", "out", "kv_tokens"};
    case SegmentKind::kAttentionMerge: return {"sequences", "tokens", "heads", "head_dim"};
    case SegmentKind::kRouter: return {"sequences", "tokens", "in", "experts", "top_k"};
    case SegmentKind::kDispatch:
    case SegmentKind::kCombine:
      return {"sequences", "tokens", "in", "experts", "top_k", "capacity"};
    case SegmentKind::kExpertIn:
    case SegmentKind::kExpertOut: return {"sequences", "tokens", "in", "out", "experts"};
    case SegmentKind::kLossMax:
    case SegmentKind::kLossSum:
    case SegmentKind::kLoss: return {"sequences", "tokens", "out"};
    case SegmentKind::kSlice:
    case SegmentKind::kZeroGradient:
    case SegmentKind::kAccumulate:
    case SegmentKind::kAdamW: return {"elements"};
  }
  return {};
}

/// Largest tensor of the shape, in elements, at most; a double, because hostile sizes overflow.
double largest_tensor(const SegmentShape& s) {
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double tokens = real(s.sequences) * real(s.tokens);
  const double columns =
      std::max({real(s.in) * real(s.slices), 2 * real(s.out), 4 * real(s.heads) * real(s.head_dim),
                (real(s.heads) + real(s.kv_heads)) * real(s.head_dim), 1.0});
  const double rows = real(s.sequences) * real(s.experts) * real(s.capacity);
  const double routed = tokens * (real(s.experts) + real(s.top_k) + 1);
  const double weights = std::max(real(s.experts), 1.0) * real(s.in) * std::max(real(s.out), 1.0);
  return std::max({tokens * columns, real(s.sequences) * real(s.kv_tokens) * columns,
                   real(s.tokens) * real(s.in), weights, real(s.elements), rows * real(s.in),
                   routed});
}

void check_sizes(base::Reader& r, const SegmentShape& s) {
  for (const std::string_view key : needed_sizes(s.kind)) {
    for (const SizeField& field : kSizes) {
      if (field.key != key || s.*field.member > 0) continue;
      r.error(key, ErrorCode::kMissingKey, "a shape of kind '{}' needs a positive '{}'",
              to_string(s.kind), key);
    }
  }
  if (s.slice >= s.slices)
    r.error("slice", ErrorCode::kOutOfRange, "slice {} of {}", s.slice, s.slices);
  if (s.dtype == DType::kInt64)
    r.error("dtype", ErrorCode::kBadValue, "segments compute in fp32 or bf16, not int64");
  if (largest_tensor(s) > static_cast<double>(kSizeRange.max)) {
    r.error("kind", ErrorCode::kOutOfRange, "the sizes make a tensor of {:.2g} elements",
            largest_tensor(s));
  }
}

}  // namespace

base::Result<SegmentShape> read_segment_shape(const base::Node& node) {
  base::ErrorSink sink;
  base::Reader r(node, "shape", sink);
  SegmentShape s;
  s.kind = r.required_enum("kind", names_up_to(kLastSegmentKind));
  s.dtype = r.required_enum("dtype", names_up_to(DType::kInt64));
  s.norm = r.optional_enum("norm", names_up_to(NormKind::kRmsNorm)).value_or(s.norm);
  s.activation =
      r.optional_enum("activation", names_up_to(Activation::kRelu)).value_or(s.activation);
  for (const SizeField& f : kSizes)
    s.*f.member = r.optional_int(f.key, kSizeRange).value_or(s.*f.member);
  for (const PartField& f : kParts) {
    s.*f.member = static_cast<int>(r.optional_int(f.key, {f.min, 1 << 30}).value_or(s.*f.member));
  }
  for (const FlagField& f : kFlags) s.*f.member = r.optional_bool(f.key).value_or(s.*f.member);
  for (const RealField& f : kReals)
    s.*f.member = r.optional_double(f.key, f.range).value_or(s.*f.member);
  r.finish();
  if (sink.ok()) check_sizes(r, s);
  return sink.result(s);
}

base::Json to_json(const SegmentShape& s) {
  const SegmentShape defaults;
  base::Json json{{"kind", to_string(s.kind)}, {"dtype", to_string(s.dtype)}};
  const auto put = [&](std::string_view key, const auto& value, const auto& fallback) {
    if (value != fallback) json[std::string(key)] = value;
  };
  put("norm", to_string(s.norm), to_string(defaults.norm));
  put("activation", to_string(s.activation), to_string(defaults.activation));
  for (const SizeField& f : kSizes) put(f.key, s.*f.member, defaults.*f.member);
  for (const PartField& f : kParts) put(f.key, s.*f.member, defaults.*f.member);
  for (const FlagField& f : kFlags) put(f.key, s.*f.member, defaults.*f.member);
  for (const RealField& f : kReals) put(f.key, s.*f.member, defaults.*f.member);
  return json;
}

}  // namespace orrery::model
