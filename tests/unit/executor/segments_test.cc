// Every backward phase against the forward phase: the derivative of L = <r, F(x)> along a random
// direction v is <dL/dx, v>, here by central differences in float. Exact identities (partial
// vocabularies, rotation, AdamW by hand) stand beside them.
#include "executor/segments/segments.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include "segments_fixture.h"

namespace orrery::executor {
namespace {

using model::Activation;
using model::NormKind;
using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

TEST_F(Segments, LinearGradientsMatchDifferencesAndAccumulate) {
  SegmentShape s = shape_of(SegmentKind::kQkv, 8, 12);
  s.bias = true;
  const at::Tensor x = random({kBatch, kTokens, 8}), w = random({12, 8}), b = random({12}),
                   r = random({kBatch, kTokens, 12});
  const auto forward = [&](const at::Tensor& x1, const at::Tensor& w1, const at::Tensor& b1) {
    Operands o{.reads = {x1},
               .writes = {declared({kBatch, kTokens, 12})},
               .updates = {},
               .weights = {w1, b1},
               .gradients = {}};
    run_phase(s, Phase::kF, o);
    return inner_product(o.writes[0].tensor, r);
  };
  Operands o{.reads = {r, x},
             .writes = {declared({kBatch, kTokens, 8})},
             .updates = {},
             .weights = {w, b},
             .gradients = {zeros({12, 8}), zeros({12})}};
  run_phase(s, Phase::kBG, o);
  expect_gradient([&](const at::Tensor& t) { return forward(t, w, b); }, x, o.writes[0].tensor);
  expect_gradient([&](const at::Tensor& t) { return forward(x, t, b); }, w, o.gradients[0]);
  expect_gradient([&](const at::Tensor& t) { return forward(x, w, t); }, b, o.gradients[1]);

  const at::Tensor once = o.gradients[0].clone(), whole_dx = o.writes[0].tensor;
  Operands apart{
      .reads = {r, x}, .writes = {}, .updates = {}, .weights = {}, .gradients = o.gradients};
  run_phase(s, Phase::kG, apart);
  EXPECT_TRUE(at::allclose(o.gradients[0], once * 2, 1e-5, 1e-6)) << "a contribution is added";
  apart = {.reads = {r},
           .writes = {declared({kBatch, kTokens, 8})},
           .updates = {},
           .weights = {w, b},
           .gradients = {}};
  run_phase(s, Phase::kB, apart);
  EXPECT_TRUE(at::equal(apart.writes[0].tensor, whole_dx)) << "B alone is the B of BG";
}

TEST_F(Segments, SlicesOfAProductAreTheProduct) {
  SegmentShape s = shape_of(SegmentKind::kMlpIn, 8, 12),
               part = shape_of(SegmentKind::kMlpIn, 2, 12);
  const at::Tensor x = random({kBatch, kTokens, 8}), w = random({12, 8}), b = random({12}),
                   r = random({kBatch, kTokens, 12});
  s.bias = true;
  part.slices = 4;
  Operands y{.reads = {x},
             .writes = {declared({kBatch, kTokens, 12})},
             .updates = {},
             .weights = {w, b},
             .gradients = {}};
  run_phase(s, Phase::kF, y);
  Operands d{.reads = {r, x},
             .writes = {declared({kBatch, kTokens, 8})},
             .updates = {},
             .weights = {w, b},
             .gradients = {zeros({12, 8}), zeros({12})}};
  run_phase(s, Phase::kBG, d);
  at::Tensor sum, dx;
  for (part.slice = 0; part.slice < 4; ++part.slice) {
    const bool first = part.slice == 0;
    part.bias = first;
    const at::Tensor columns = w.narrow(1, 2 * part.slice, 2).contiguous();
    Operands o{.reads = {x}, .writes = {}, .updates = {}, .weights = {columns, b}, .gradients = {}};
    if (first)
      o.writes = {declared({kBatch, kTokens, 12})};
    else
      o.updates = {sum};
    run_phase(part, Phase::kF, o);
    if (first) sum = o.writes[0].tensor;
    o = {.reads = {r, x},
         .writes = {},
         .updates = {},
         .weights = {columns, b},
         .gradients = {zeros({12, 2}), zeros({12})}};
    if (first)
      o.writes = {declared({kBatch, kTokens, 8})};
    else
      o.updates = {dx};
    run_phase(part, Phase::kBG, o);
    if (first) dx = o.writes[0].tensor;
    EXPECT_TRUE(
        at::allclose(o.gradients[0], d.gradients[0].narrow(1, 2 * part.slice, 2), 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(o.gradients[1], first ? d.gradients[1] : zeros({12}), 1e-5, 1e-6));
  }
  EXPECT_TRUE(at::allclose(sum, y.writes[0].tensor, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(dx, d.writes[0].tensor, 1e-5, 1e-6));
}

struct NormCase {
  NormKind kind;
  bool gain = true, bias = true;
};
class Norms : public Segments, public ::testing::WithParamInterface<NormCase> {};
TEST_P(Norms, GradientsMatchDifferencesAndAddTheResidual) {
  SegmentShape s = shape_of(SegmentKind::kNorm, 16, 16);
  s.norm = GetParam().kind;
  s.gain = GetParam().gain;
  s.norm_bias = GetParam().bias;
  s.residual = true;
  const bool layer = s.norm == NormKind::kLayerNorm, has_bias = layer && s.norm_bias;
  const at::Tensor x = random({kBatch, kTokens, 16}), gain = random({16}), bias = random({16}),
                   r = random(x.sizes());
  const auto run_forward = [&](const at::Tensor& x1, const at::Tensor& gain1) {
    Operands o{.reads = {x1},
               .writes = {declared({kBatch, kTokens, 16})},
               .updates = {},
               .weights = {},
               .gradients = {}};
    if (s.gain) o.weights.push_back(gain1);
    if (has_bias) o.weights.push_back(bias);
    for (int i = 0; i < (layer ? 2 : 1); ++i) o.writes.push_back(declared({kBatch * kTokens}));
    run_phase(s, Phase::kF, o);
    return o;
  };
  const Operands f = run_forward(x, gain);
  const at::Tensor residual = random(x.sizes());
  Operands o{.reads = {r, x},
             .writes = {declared({kBatch, kTokens, 16})},
             .updates = {},
             .weights = f.weights,
             .gradients = std::vector(f.weights.size(), zeros({16}))};
  for (at::Tensor& gradient : o.gradients) gradient = zeros({16});
  for (std::size_t i = 1; i < f.writes.size(); ++i) o.reads.push_back(f.writes[i].tensor);
  o.reads.push_back(residual);
  run_phase(s, Phase::kBG, o);
  expect_gradient(
      [&](const at::Tensor& t) { return inner_product(run_forward(t, gain).writes[0].tensor, r); },
      x, o.writes[0].tensor - residual);
  if (s.gain)
    expect_gradient(
        [&](const at::Tensor& t) { return inner_product(run_forward(x, t).writes[0].tensor, r); },
        gain, o.gradients[0]);
  if (!has_bias) return;
  EXPECT_TRUE(at::allclose(o.gradients[1], r.sum(at::IntArrayRef{0, 1}), 1e-4, 1e-5));
}
INSTANTIATE_TEST_SUITE_P(Kinds, Norms,
                         ::testing::Values(NormCase{NormKind::kLayerNorm},
                                           NormCase{NormKind::kLayerNorm, true, false},
                                           NormCase{NormKind::kLayerNorm, false, false},
                                           NormCase{NormKind::kRmsNorm}));

struct ActivationCase {
  Activation activation;
  bool gated;
};
class Activations : public Segments, public ::testing::WithParamInterface<ActivationCase> {};
TEST_P(Activations, GradientMatchesDifferences) {
  const std::int64_t wide = GetParam().gated ? 20 : 10;
  SegmentShape s = shape_of(SegmentKind::kActivation, wide, 10);
  s.activation = GetParam().activation;
  s.gated = GetParam().gated;
  const at::Tensor u = random({kBatch, kTokens, wide}), r = random({kBatch, kTokens, 10});
  const auto forward = [&](const at::Tensor& u1) {
    Operands o{.reads = {u1},
               .writes = {declared({kBatch, kTokens, 10})},
               .updates = {},
               .weights = {},
               .gradients = {}};
    run_phase(s, Phase::kF, o);
    return inner_product(o.writes[0].tensor, r);
  };
  Operands o{.reads = {r, u},
             .writes = {declared({kBatch, kTokens, wide})},
             .updates = {},
             .weights = {},
             .gradients = {}};
  run_phase(s, Phase::kB, o);
  expect_gradient(forward, u, o.writes[0].tensor);
}
INSTANTIATE_TEST_SUITE_P(Kinds, Activations,
                         ::testing::Values(ActivationCase{Activation::kGelu, false},
                                           ActivationCase{Activation::kGeluTanh, false},
                                           ActivationCase{Activation::kSilu, false},
                                           ActivationCase{Activation::kSilu, true},
                                           ActivationCase{Activation::kClampedSwiglu, true}));

TEST_F(Segments, AClampedGateStopsAtItsLimits) {
  SegmentShape s = shape_of(SegmentKind::kActivation, 8, 4);
  s.sequences = s.tokens = 1;
  s.activation = Activation::kClampedSwiglu;
  s.gated = true;
  const at::Tensor u =
      at::tensor({1.0F, 9.0F, -9.0F, 2.0F, 0.5F, 2.0F, 1.0F, -9.0F}).view({1, 1, 8});
  for (const model::DType type : {model::DType::kFloat32, model::DType::kBFloat16}) {
    const at::ScalarType t = scalar_type(type);
    Output out = declared({1, 1, 4}), du = declared({1, 1, 8});
    out.dtype = du.dtype = type;
    Operands f{.reads = {u.to(t)}, .writes = {out}, .updates = {}, .weights = {}, .gradients = {}};
    run_phase(s, Phase::kF, f);
    // (up + 1) gate sigmoid(1.702 gate) by hand, of gates 1, 7, -9, 2 and 0.5, 2, 1, -7
    EXPECT_TRUE(at::allclose(f.writes[0].tensor.to(at::kFloat),
                             at::tensor({1.2687F, 20.9999F, -4.009e-6F, -11.6137F}).view({1, 1, 4}),
                             1e-2, 1e-7));
    Operands b{.reads = {at::ones({1, 1, 4}).to(t), u.to(t)},
               .writes = {du},
               .updates = {},
               .weights = {},
               .gradients = {}};
    run_phase(s, Phase::kB, b);
    const at::Tensor gradient = b.writes[0].tensor.flatten();
    EXPECT_EQ(gradient[1].item<float>(), 0) << "gate beyond 7";
    EXPECT_EQ(gradient[7].item<float>(), 0) << "up below -7";
    EXPECT_NE(gradient[2].item<float>(), 0) << "gates have no lower limit";
    EXPECT_NE(gradient[5].item<float>(), 0);
  }
}

SegmentShape attention_shape(std::int64_t heads, std::int64_t kv_heads, bool rotary, bool causal) {
  SegmentShape s = shape_of(SegmentKind::kAttention, (heads + 2 * kv_heads) * 8, heads * 8);
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = 8;
  s.rotary = rotary;
  s.causal = causal;
  return s;
}
Operands attend(const SegmentShape& s, const at::Tensor& qkv) {
  Operands o{.reads = {qkv},
             .writes = {declared({kBatch, kTokens, s.out}), declared({kBatch, s.heads, kTokens})},
             .updates = {},
             .weights = {},
             .gradients = {}};
  run_phase(s, Phase::kF, o);
  return o;
}

struct AttentionCase {
  std::int64_t heads, kv_heads;
  bool rotary, causal;
};
class Attention : public Segments, public ::testing::WithParamInterface<AttentionCase> {};
TEST_P(Attention, GradientMatchesDifferences) {
  const auto [heads, kv_heads, rotary, causal] = GetParam();
  const SegmentShape s = attention_shape(heads, kv_heads, rotary, causal);
  const at::Tensor qkv = random({kBatch, kTokens, s.in}), r = random({kBatch, kTokens, s.out});
  const Operands f = attend(s, qkv);
  Operands o{.reads = {r, qkv, f.writes[0].tensor, f.writes[1].tensor},
             .writes = {declared({kBatch, kTokens, s.in})},
             .updates = {},
             .weights = {},
             .gradients = {}};
  run_phase(s, Phase::kB, o);
  expect_gradient(
      [&](const at::Tensor& t) { return inner_product(attend(s, t).writes[0].tensor, r); }, qkv,
      o.writes[0].tensor);
}
INSTANTIATE_TEST_SUITE_P(Kinds, Attention,
                         ::testing::Values(AttentionCase{4, 4, false, true},
                                           AttentionCase{4, 4, true, true},
                                           AttentionCase{4, 2, true, true},
                                           AttentionCase{2, 2, false, false}));

TEST_F(Segments, AttentionIsTheSoftmaxOverEarlierKeys) {
  const SegmentShape s = attention_shape(2, 1, false, true);
  const at::Tensor qkv = random({kBatch, kTokens, s.in});
  const Operands f = attend(s, qkv);
  const at::Tensor q = qkv.narrow(2, 0, 16).view({kBatch, kTokens, 2, 8}), k = qkv.narrow(2, 16, 8),
                   v = qkv.narrow(2, 24, 8);
  for (std::int64_t head = 0; head < 2; ++head) {
    const at::Tensor scores = q.select(2, head).matmul(k.transpose(1, 2)) / std::sqrt(8.0);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const at::Tensor row = scores.select(1, t).narrow(1, 0, t + 1);
      const at::Tensor expected =
          row.softmax(1).unsqueeze(1).matmul(v.narrow(1, 0, t + 1)).squeeze(1);
      EXPECT_TRUE(at::allclose(f.writes[0].tensor.select(1, t).narrow(1, head * 8, 8), expected,
                               1e-4, 1e-5));
      EXPECT_TRUE(at::allclose(f.writes[1].tensor.select(1, head).select(1, t),
                               row.logsumexp(at::IntArrayRef{1}), 1e-4, 1e-5));
    }
  }
}

TEST_F(Segments, RotaryLeavesTheFirstPositionAndTurnsTheOthers) {
  const SegmentShape turned = attention_shape(1, 1, true, true),
                     plain = attention_shape(1, 1, false, true);
  const at::Tensor qkv = random({kBatch, kTokens, turned.in});
  const at::Tensor a = attend(turned, qkv).writes[1].tensor,
                   b = attend(plain, qkv).writes[1].tensor;
  EXPECT_TRUE(at::equal(a.select(2, 0), b.select(2, 0)));
  EXPECT_FALSE(at::allclose(a.select(2, kTokens - 1), b.select(2, kTokens - 1), 1e-3));
}

TEST_F(Segments, EmbeddingShardsAddUpToTheWholeTable) {
  SegmentShape whole = shape_of(SegmentKind::kEmbedding, 4, 10), half = whole;
  whole.vocab = half.vocab = 10;
  half.out = 5;
  const at::Tensor ids = at::randint(10, {kBatch, kTokens}, at::TensorOptions().dtype(at::kLong)),
                   table = random({10, 4});
  const at::Tensor d = random({kBatch, kTokens, 4});
  at::Tensor sum = zeros({kBatch, kTokens, 4}), gradient = zeros({10, 4});
  for (std::int64_t shard = 0; shard < 2; ++shard) {
    SegmentContext context;
    context.vocabulary_shard = shard;
    Operands o{.reads = {ids},
               .writes = {declared({kBatch, kTokens, 4})},
               .updates = {},
               .weights = {table.narrow(0, shard * 5, 5)},
               .gradients = {}};
    run_phase(half, Phase::kF, o, context);
    sum += o.writes[0].tensor;
    Operands g{.reads = {d, ids},
               .writes = {},
               .updates = {},
               .weights = {},
               .gradients = {gradient.narrow(0, shard * 5, 5)}};
    run_phase(half, Phase::kBG, g, context);
  }
  EXPECT_TRUE(at::equal(sum, table.index_select(0, ids.view({-1})).view({kBatch, kTokens, 4})));
  const at::Tensor expected = zeros({10, 4}).index_add_(0, ids.view({-1}), d.view({-1, 4}));
  EXPECT_TRUE(at::allclose(gradient, expected, 1e-5, 1e-6));
}

TEST_F(Segments, AdamWFirstStepMovesEachWeightByTheRateAndDecaysMatricesOnly) {
  SegmentShape s;
  s.kind = SegmentKind::kAdamW;
  s.elements = 6;
  plan::ParameterUnit unit;
  for (const bool decay : {true, false}) {
    plan::Parameter p;
    p.shape = p.local_shape = {4};
    p.offset = decay ? 0 : 4;
    p.decay = decay;
    unit.parameters.push_back(p);
  }
  unit.elements = unit.padded = 8;
  SegmentContext context;
  context.unit = &unit;
  context.shard_begin = 1;  // elements 1..6 of the unit: three of each parameter
  context.optimizer = {
      .learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-12, .weight_decay = 0.5};
  at::Tensor p = at::ones({8}), g = at::full({8}, -2.0);
  Operands o{.reads = {g},
             .writes = {},
             .updates = {p, zeros({6}), zeros({6})},
             .weights = {},
             .gradients = {}};
  run_phase(s, Phase::kF, o, context);
  // m / (1 - b1) = g and v / (1 - b2) = g^2, so the step is lr * sign(g).
  const float decayed = 1 - 0.1F * 0.5F + 0.1F, plain = 1 + 0.1F;
  EXPECT_THAT(std::vector<float>(p.const_data_ptr<float>(), p.const_data_ptr<float>() + 8),
              ::testing::Pointwise(
                  ::testing::FloatNear(1e-6F),
                  std::vector<float>{1, decayed, decayed, decayed, plain, plain, plain, 1}));
}

TEST_F(Segments, SliceTakesThePartOfTheRank) {
  SegmentShape s;
  s.kind = SegmentKind::kSlice;
  s.dim = 1;
  s.parts = 2;
  s.part_stride = 2;
  const at::Tensor x = random({2, 6, 3});
  SegmentContext context;
  context.local_rank = 3;  // (3 / 2) % 2 = 1
  Operands o{
      .reads = {x}, .writes = {declared({2, 3, 3})}, .updates = {}, .weights = {}, .gradients = {}};
  run_phase(s, Phase::kF, o, context);
  EXPECT_TRUE(at::equal(o.writes[0].tensor, x.narrow(1, 3, 3)));
}

TEST_F(Segments, APhaseThatASegmentLacksIsADiagnostic) {
  const SegmentShape s = attention_shape(2, 2, false, true);
  Operands o;
  SegmentContext context;
  const auto done = run_segment(s, Phase::kG, o, context);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().front().code, base::ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace orrery::executor
