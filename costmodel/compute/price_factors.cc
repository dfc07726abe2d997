#include "costmodel/compute/price_factors.h"

#include <cmath>

#include "base/rng.h"

namespace orrery::costmodel {

using model::SegmentKind;

WorkKind work_kind(SegmentKind kind) {
  using enum SegmentKind;
  switch (kind) {
    case kQkv:
    case kProjection:
    case kMlpIn:
    case kMlpOut:
    case kExpertIn:
    case kExpertOut:
    case kLatentProduct:
    case kAdapterIn:
    case kAdapterOut:
    case kLogits: return WorkKind::kProduct;
    case kAttention:
    case kLatentAttention:
    case kAttentionBlock: return WorkKind::kAttention;
    default: return WorkKind::kStream;
  }
}

double PriceFactors::of_kind(SegmentKind kind) const {
  switch (work_kind(kind)) {
    case WorkKind::kProduct: return products;
    case WorkKind::kAttention: return attention;
    case WorkKind::kStream: break;
  }
  return streams;
}

double PriceFactors::of_shape(const model::SegmentShape& s, model::Phase phase) const {
  if (operators == 0 || work_kind(s.kind) == WorkKind::kStream) return 1;
  std::uint64_t key = seed;
  for (const std::int64_t part :
       {s.token_count(), s.in, s.out, s.heads * s.head_dim, s.tokens, s.experts,
        static_cast<std::int64_t>(work_kind(s.kind)), static_cast<std::int64_t>(phase)})
    key = base::derive(key, static_cast<std::uint64_t>(part));
  return std::exp(operators * base::normal(key, 0));
}

}  // namespace orrery::costmodel
