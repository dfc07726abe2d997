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
  SegmentShape s{.kind = static_cast<SegmentKind>(
                     *rc::gen::inRange(0, static_cast<int>(kLastSegmentKind) + 1)),
                 .dtype = *rc::gen::element(DType::kFloat32, DType::kBFloat16)};
  for (auto member :
       {&SegmentShape::sequences, &SegmentShape::tokens, &SegmentShape::in, &SegmentShape::out,
        &SegmentShape::kv_heads, &SegmentShape::head_dim, &SegmentShape::elements,
        &SegmentShape::vocab, &SegmentShape::kv_tokens, &SegmentShape::experts,
        &SegmentShape::top_k, &SegmentShape::capacity, &SegmentShape::value_dim,
        &SegmentShape::index_heads, &SegmentShape::index_dim, &SegmentShape::state,
        &SegmentShape::kernel, &SegmentShape::chunk, &SegmentShape::weights}) {
    s.*member = size();
  }
  s.heads = s.kv_heads * *rc::gen::inRange(1, 5);
  s.rope_dim = s.head_dim++;
  for (auto member : {&SegmentShape::gated, &SegmentShape::bias, &SegmentShape::rotary,
                      &SegmentShape::residual, &SegmentShape::shared}) {
    s.*member = *rc::gen::arbitrary<bool>();
  }
  s.norm = *rc::gen::element(NormKind::kLayerNorm, NormKind::kRmsNorm);
  s.activation = *rc::gen::element(Activation::kGelu, Activation::kGeluTanh, Activation::kSilu);
  return s;
}

TEST(WorkProperty, BothGradientsCostTheirSumAndShareOperands) {
  EXPECT_TRUE(
      rc::check("BG = B + G in FLOPs, at most in bytes, the larger of the two in temporaries", [] {
        const SegmentShape s = any_shape();
        const PhaseWork b = work(s, Phase::kB), g = work(s, Phase::kG), both = work(s, Phase::kBG);
        RC_ASSERT(both.flops.raw() == b.flops.raw() + g.flops.raw());
        RC_ASSERT(both.bytes.raw() <= b.bytes.raw() + g.bytes.raw());
        RC_ASSERT(both.bytes.raw() >= std::max(b.bytes.raw(), g.bytes.raw()));
        RC_ASSERT(both.transient_bytes == std::max(b.transient_bytes, g.transient_bytes));
      }));
}

TEST(WorkProperty, WorkIsLinearInSequences) {
  EXPECT_TRUE(rc::check(
      "twice the sequences: twice the FLOPs, at most twice the bytes and temporaries", [] {
        const SegmentShape s = any_shape();
        SegmentShape twice = s;
        twice.sequences *= 2;
        for (const Phase phase : {Phase::kF, Phase::kB, Phase::kG, Phase::kBG}) {
          const PhaseWork one = work(s, phase), two = work(twice, phase);
          RC_ASSERT(two.flops.raw() == 2 * one.flops.raw() ||
                    (s.kind >= SegmentKind::kSlice && s.kind <= SegmentKind::kAdamW));
          RC_ASSERT(two.bytes.raw() >= one.bytes.raw() && two.bytes.raw() <= 2 * one.bytes.raw());
          RC_ASSERT(two.transient_bytes >= one.transient_bytes &&
                    two.transient_bytes <= 2 * one.transient_bytes);
        }
      }));
}

/// Forward FLOPs of a product or an attention core on one sequence of `tokens`.
double flops(SegmentKind kind, std::int64_t tokens, std::int64_t in, std::int64_t out,
             std::int64_t experts = 0) {
  const SegmentShape s{
      .kind = kind, .sequences = 1, .tokens = tokens, .in = in, .out = out, .experts = experts};
  return work(s, Phase::kF).flops.raw();
}
double attention_flops(const ModelSpec& m, std::int64_t sequences, std::int64_t tokens) {
  const SegmentShape s{.kind = SegmentKind::kAttention,
                       .sequences = sequences,
                       .tokens = tokens,
                       .heads = m.heads,
                       .kv_heads = m.kv_heads,
                       .head_dim = m.head_dim,
                       .reach = m.reach};
  return work(s, Phase::kF).flops.raw();
}

/// The products of one block, as segments of a single rank.
double block_flops(const ModelSpec& m, std::int64_t seq) {
  const std::int64_t t = seq / m.token_share, span = m.attention_span(t);
  double mlp = flops(SegmentKind::kMlpIn, t, m.hidden, m.mlp_in_features()) +
               flops(SegmentKind::kMlpOut, t, m.ffn, m.hidden);
  // every token as often as it has experts; what a router does beside its product is no product
  if (m.experts > 0) {
    const std::int64_t routed = t * m.experts_per_token;
    mlp = flops(SegmentKind::kExpertIn, routed, m.hidden, m.mlp_in_features(), m.experts) +
          flops(SegmentKind::kExpertOut, routed, m.ffn, m.hidden, m.experts);
    if (m.shared_ffn > 0)
      mlp += flops(SegmentKind::kMlpIn, t, m.hidden, 2 * m.shared_ffn) +
             flops(SegmentKind::kMlpOut, t, m.shared_ffn, m.hidden);
    mlp += 2.0 * static_cast<double>(t * m.hidden *
                                     (m.experts + (m.shared_ffn > 0 && m.shared_gate ? 1 : 0)));
  }
  const double products = flops(SegmentKind::kQkv, t, m.hidden, m.qkv_features()) +
                          flops(SegmentKind::kProjection, t, m.heads * m.head_dim, m.hidden);
  double block = products + attention_flops(m, t / span, span) + mlp;
  if (m.cross_attention) block += products + attention_flops(m, 1, t);
  if (m.entry == BlockEntry::kPatchMerging)
    block += flops(SegmentKind::kPatchProduct, t, 2 * m.hidden, m.hidden);
  return block;
}

/// Those of all blocks, of the head, and of the patches of images.
double product_flops(const ModelSpec& m, std::int64_t seq) {
  double sum = 0;
  for (std::int64_t l = 0; l < m.layers; ++l) sum += block_flops(m.of_kind(m.kind_of(l)), seq);
  const bool image = m.patch_features > 0;
  if (image) sum += flops(SegmentKind::kPatchProduct, seq, m.patch_features, m.hidden);
  return sum +
         flops(SegmentKind::kLogits, image ? 1 : seq, m.of_kind(m.last_kind()).hidden, m.vocab);
}

TEST(WorkProperty, ProductsOfSegmentsAreTheFlopsOfTheModel) {
  std::vector<ModelSpec> models;
  for (const CatalogModel& entry : list_catalog()) {
    const auto found = find_model(entry.name);
    ASSERT_TRUE(found) << base::to_string(found.error());
    bool plain = true;  // others: tests/unit/model/hf_decoders_test.cc
    for (int k = 0; k < found->kinds(); ++k) plain = plain && found->of_kind(k).plain_attention();
    if (plain) models.push_back(*found);
  }
  ASSERT_GT(models.size(), 50U);
  EXPECT_TRUE(rc::check("Σ work = forward_matmul_flops", [&] {
    const ModelSpec& m = models[*rc::gen::inRange<std::size_t>(0, models.size())];
    const std::int64_t drawn = *rc::gen::inRange(1, 2049),
                       seq = m.patch_features > 0 ? m.max_positions : drawn;
    RC_ASSERT(product_flops(m, seq) == m.forward_matmul_flops(seq));  // below 2^53: no rounding
  }));
}

}  // namespace
}  // namespace orrery::model
