// Laws that hold between the sizes of segments, whatever the shape.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <vector>

#include "model/segment.h"
#include "model/spec.h"

namespace orrery::model {
namespace {

SegmentShape any_shape() {
  const auto size = [] { return static_cast<std::int64_t>(*rc::gen::inRange(1, 600)); };
  SegmentShape s{.kind = static_cast<SegmentKind>(*rc::gen::inRange(0, static_cast<int>(SegmentKind::kAdamW) + 1)),
                 .dtype = *rc::gen::element(DType::kFloat32, DType::kBFloat16)};
  for (auto member : {&SegmentShape::sequences, &SegmentShape::tokens, &SegmentShape::in, &SegmentShape::out, &SegmentShape::kv_heads,
                      &SegmentShape::head_dim, &SegmentShape::elements, &SegmentShape::vocab, &SegmentShape::kv_tokens}) {
    s.*member = size();
  }
  s.heads = s.kv_heads * *rc::gen::inRange(1, 5);
  for (auto member : {&SegmentShape::gated, &SegmentShape::bias, &SegmentShape::rotary, &SegmentShape::residual}) {
    s.*member = *rc::gen::arbitrary<bool>();
  }
  s.norm = *rc::gen::element(NormKind::kLayerNorm, NormKind::kRmsNorm);
  s.activation = *rc::gen::element(Activation::kGelu, Activation::kGeluTanh, Activation::kSilu);
  return s;
}

TEST(WorkProperty, BothGradientsCostTheirSumAndShareOperands) {
  EXPECT_TRUE(rc::check("BG = B + G in FLOPs, at most in bytes, the larger of the two in temporaries", [] {
    const SegmentShape s = any_shape();
    const PhaseWork b = work(s, Phase::kB), g = work(s, Phase::kG), both = work(s, Phase::kBG);
    RC_ASSERT(both.flops.raw() == b.flops.raw() + g.flops.raw());
    RC_ASSERT(both.bytes.raw() <= b.bytes.raw() + g.bytes.raw());
    RC_ASSERT(both.bytes.raw() >= std::max(b.bytes.raw(), g.bytes.raw()));
    RC_ASSERT(both.transient_bytes == std::max(b.transient_bytes, g.transient_bytes));
  }));
}

TEST(WorkProperty, WorkIsLinearInSequences) {
  EXPECT_TRUE(rc::check("twice the sequences: twice the FLOPs, at most twice the bytes and temporaries", [] {
    const SegmentShape s = any_shape();
    SegmentShape twice = s;
    twice.sequences *= 2;
    for (const Phase phase : {Phase::kF, Phase::kB, Phase::kG, Phase::kBG}) {
      const PhaseWork one = work(s, phase), two = work(twice, phase);
      RC_ASSERT(two.flops.raw() == 2 * one.flops.raw() || s.kind >= SegmentKind::kSlice);
      RC_ASSERT(two.bytes.raw() >= one.bytes.raw() && two.bytes.raw() <= 2 * one.bytes.raw());
      RC_ASSERT(two.transient_bytes >= one.transient_bytes && two.transient_bytes <= 2 * one.transient_bytes);
    }
  }));
}

/// The products of one block and of the head, as segments of a single rank.
double product_flops(const ModelSpec& m, std::int64_t seq) {
  SegmentShape base{.sequences = 1, .tokens = seq, .heads = m.heads, .kv_heads = m.kv_heads, .head_dim = m.head_dim};
  const auto flops = [&](SegmentKind kind, std::int64_t in, std::int64_t out) {
    SegmentShape s = base;
    s.kind = kind;
    s.in = in;
    s.out = out;
    return work(s, Phase::kF).flops.raw();
  };
  const double block = flops(SegmentKind::kQkv, m.hidden, m.qkv_features()) + flops(SegmentKind::kAttention, 0, 0) +
                       flops(SegmentKind::kProjection, m.heads * m.head_dim, m.hidden) +
                       flops(SegmentKind::kMlpIn, m.hidden, m.mlp_in_features()) + flops(SegmentKind::kMlpOut, m.ffn, m.hidden);
  return static_cast<double>(m.layers) * block + flops(SegmentKind::kLogits, m.hidden, m.vocab);
}

TEST(WorkProperty, ProductsOfSegmentsAreTheFlopsOfTheModel) {
  std::vector<ModelSpec> models;
  for (const CatalogModel& entry : list_catalog()) {
    const auto found = find_model(entry.name);
    ASSERT_TRUE(found) << base::to_string(found.error());
    models.push_back(*found);
  }
  EXPECT_TRUE(rc::check("Σ work = forward_matmul_flops", [&] {
    const ModelSpec& m = models[*rc::gen::inRange<std::size_t>(0, models.size())];
    const std::int64_t seq = *rc::gen::inRange(1, 2049);
    RC_ASSERT(product_flops(m, seq) == m.forward_matmul_flops(seq));  // below 2^53: no rounding
  }));
}

}  // namespace
}  // namespace orrery::model
