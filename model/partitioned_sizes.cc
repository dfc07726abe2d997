#include "model/partitioned_sizes.h"

#include <algorithm>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::model {
namespace {

using enum Phase;
constexpr double kFloatBytes = 4, kFloatReadWrite = 8;

/// A phase of the table; BG is their sum, with the larger of their temporaries.
struct Row {
  double flops = 0, bytes = 0;
  std::int64_t transient = 0;
};

class Rows {
 public:
  explicit Rows(const SegmentShape& s) : s_(s) {}

  Row bias(Phase phase) const {
    if (phase == kF) return {x_, 2 * e_ * x_ + e_ * h_};
    return phase == kG ? Row{x_, e_ * x_ + kFloatReadWrite * h_} : Row{};
  }
  Row norm_sums(Phase phase) const {
    const double statistics = kFloatBytes * v_ * t_;
    if (phase == kF) return {(2 * v_ - 1) * x_, e_ * x_ + statistics, bf16_ ? floats(1) : 0};
    if (phase == kG) return {};
    return {(3 + 2 * v_) * x_, 2 * e_ * x_ + e_ * h_ + 2 * statistics, floats(bf16_ ? 3 : 1)};
  }
  Row norm_apply(Phase phase) const {
    const double statistics = kFloatBytes * v_ * t_;
    if (phase == kF)
      return {(2 + 2 * v_) * x_, 2 * e_ * x_ + e_ * v_ * h_ + 2 * statistics,
              bf16_ ? floats(1) : 0};
    if (phase == kG)
      return {(1 + v_) * x_, 2 * e_ * x_ + kFloatReadWrite * v_ * h_ + statistics,
              floats(bf16_ ? 3 : 2)};
    return {(3 + 3 * v_) * x_, 3 * e_ * x_ + e_ * h_ + 2 * statistics + (s_.residual ? e_ * x_ : 0),
            floats(bf16_ ? 3 : 1)};
  }
  Row product_of_heads() const {
    const std::int64_t q = s_.token_count() * s_.heads * s_.head_dim,
                       k = s_.sequences * s_.kv_tokens * s_.kv_heads * s_.head_dim;
    return {2 * scores() * real(s_.head_dim), e_ * (real(q) + real(k) + scores()),
            element_bytes(s_.dtype) * (q + k)};
  }
  Row softmax(Phase phase) const {
    if (phase == kG) return {};
    if (phase == kB) return {4 * scores(), 3 * e_ * scores()};
    const std::int64_t masked =
        element_bytes(s_.dtype) * s_.token_count() * s_.heads * s_.kv_tokens +
        s_.tokens * s_.kv_tokens;
    return {5 * scores(), 2 * e_ * scores(), s_.causal ? masked : 0};
  }

 private:
  double scores() const { return t_ * real(s_.heads) * real(s_.kv_tokens); }
  std::int64_t floats(int copies) const { return 4 * copies * s_.token_count() * s_.in; }

  const SegmentShape& s_;
  const bool bf16_ = s_.dtype == DType::kBFloat16;
  const double e_ = real(element_bytes(s_.dtype)), t_ = real(s_.token_count()), h_ = real(s_.in),
               x_ = t_ * h_, v_ = s_.norm == NormKind::kLayerNorm ? 2 : 1;
};

Row row(const SegmentShape& s, Phase phase) {
  const Rows rows(s);
  switch (s.kind) {
    case SegmentKind::kBias: return rows.bias(phase);
    case SegmentKind::kNormSums: return rows.norm_sums(phase);
    case SegmentKind::kNormApply: return rows.norm_apply(phase);
    case SegmentKind::kScores:
    case SegmentKind::kValues: return rows.product_of_heads();
    case SegmentKind::kSoftmax: return rows.softmax(phase);
    default: ORRERY_CHECK(false, "'{}' is no segment of partitioned operators", to_string(s.kind));
  }
}

}  // namespace

PhaseWork partitioned_work(const SegmentShape& s, Phase phase) {
  Row sum = row(s, phase == kBG ? kB : phase);
  if (phase == kBG) {
    const Row g = row(s, kG);
    sum = {sum.flops + g.flops, sum.bytes + g.bytes, std::max(sum.transient, g.transient)};
  }
  return {.flops = base::Flops(sum.flops),
          .bytes = base::Bytes(sum.bytes),
          .transient_bytes = sum.transient};
}

}  // namespace orrery::model
