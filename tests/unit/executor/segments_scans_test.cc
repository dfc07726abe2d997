// Scans: Mamba-2, the gated delta rule, lightning attention. Outputs and every gradient against the
// same formulas in fp64 under LibTorch's autograd, against differences, and by hand.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>

#include "segments_fixture.h"
#include "tests/support/scan_reference.h"

namespace orrery::executor {
namespace {

using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

using Tensors = std::vector<at::Tensor>;

struct Case {
  const char* name;
  SegmentShape shape;
  std::int64_t layer = 0, layers = 1;
  [[nodiscard]] SegmentContext context() const {
    SegmentContext made;
    made.layer = layer;
    made.layers = layers;
    return made;
  }
};

/// 4 heads of 6 values in two groups of 5 keys; 3 taps.
SegmentShape scan(std::int64_t steps) {
  SegmentShape s = shape_of(SegmentKind::kScan, 0, 24);
  s.tokens = 11;
  s.heads = 4;
  s.head_dim = 6;
  s.kv_heads = 2;
  s.state = 5;
  s.kernel = 3;
  s.chunk = 4;
  s.in = 2 * 24 + 2 * 10 + 4 * steps;
  return s;
}
SegmentShape mamba() { return scan(1); }
SegmentShape delta() {
  SegmentShape s = scan(2);
  s.delta = true;
  s.epsilon = 1e-6;
  return s;
}
SegmentShape lightning() {
  SegmentShape s = scan(0);
  s.kv_heads = s.alibi = 4;
  s.state = 6;
  s.kernel = 0;
  s.in = 4 * 24;
  return s;
}

/// Decays and steps of ordinary size, the rest anywhere.
Tensors weights_of(const SegmentShape& s) {
  Tensors weights;
  for (const std::int64_t elements : model::scan_weights(s))
    weights.push_back(random({elements}) * 0.5);
  return weights;
}

SegmentShape with(SegmentShape s, std::int64_t tokens, std::int64_t chunk) {
  s.tokens = tokens;
  s.chunk = chunk;
  return s;
}

std::vector<Case> cases() {
  SegmentShape one_group = mamba(), short_kernel = delta();
  one_group.kv_heads = 1;
  one_group.in -= 2 * one_group.state;
  short_kernel.kernel = 1;
  return {{"mamba", mamba()},
          {"mamba, one group", one_group},
          {"mamba, one chunk", with(mamba(), 7, 64)},
          {"mamba, chunks of one token", with(mamba(), 5, 1)},
          {"mamba, longer than a forward tile", with(mamba(), 150, 32)},
          {"mamba, fewer tokens than taps", with(mamba(), 2, 8)},
          {"delta", delta()},
          {"delta, one chunk", with(delta(), 9, 64)},
          {"delta, one tap", short_kernel},
          {"delta, longer than a forward tile", with(delta(), 70, 32)},
          {"lightning, first block", lightning(), 0, 4},
          {"lightning, third block", with(lightning(), 70, 16), 2, 4}};
}

class Scans : public Segments {};

Tensors forward(const SegmentShape& s, const at::Tensor& u, const Tensors& weights,
                const SegmentContext& context = {}) {
  Operands o{{u},
             {declared({s.sequences, s.tokens, s.out}), declared({s.sequences, s.tokens, s.out})},
             {},
             weights,
             {}};
  run_phase(s, Phase::kF, o, context);
  return {o.writes[0].tensor, o.writes[1].tensor};
}

struct Gradients {
  at::Tensor u;
  Tensors weights;
};
Gradients backward(const SegmentShape& s, const at::Tensor& d, const at::Tensor& u,
                   const at::Tensor& y, const Tensors& weights, Phase phase = Phase::kBG,
                   const SegmentContext& context = {}) {
  Tensors gradients;
  for (const at::Tensor& w : weights) gradients.push_back(zeros(w.sizes()));
  Operands o{{d, u, y}, {declared({s.sequences, s.tokens, s.in})}, {}, weights, gradients};
  run_phase(s, phase, o, context);
  return {o.writes[0].tensor, gradients};
}

double difference(const at::Tensor& a, const at::Tensor& wanted) {
  return (a.to(at::kDouble) - wanted).norm().item<double>() / wanted.norm().item<double>();
}

TEST_F(Scans, AreTheFormulasInFp64WithTheirGradients) {
  double worst_output = 0, worst_gradient = 0;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const SegmentShape& s = c.shape;
    const at::Tensor u = random({s.sequences, s.tokens, s.in}),
                     d = random({s.sequences, s.tokens, s.out});
    const Tensors weights = weights_of(s);
    at::Tensor wide_u = u.to(at::kDouble).requires_grad_(true);
    Tensors wide;
    for (const at::Tensor& w : weights) wide.push_back(w.to(at::kDouble).requires_grad_(true));
    const at::Tensor wanted = tests::ScanReference(s, wide_u, wide, c.layer, c.layers).output();
    (wanted * d.to(at::kDouble)).sum().backward();

    const Tensors made = forward(s, u, weights, c.context());
    worst_output = std::max(worst_output, difference(made[0], wanted.detach()));
    const Gradients g = backward(s, d, u, made[1], weights, Phase::kBG, c.context());
    worst_gradient = std::max(worst_gradient, difference(g.u, wide_u.grad()));
    EXPECT_LT(difference(g.u, wide_u.grad()), 1e-5);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      EXPECT_LT(difference(g.weights[i], wide[i].grad()), 1e-5) << "weights " << i;
      worst_gradient = std::max(worst_gradient, difference(g.weights[i], wide[i].grad()));
    }
    EXPECT_LT(difference(made[0], wanted.detach()), 1e-6);
  }
  std::printf("largest difference of outputs %.1e, of gradients %.1e\n", worst_output,
              worst_gradient);
}

TEST_F(Scans, EveryGradientIsTheDifference) {
  constexpr std::int64_t kShort = 11;
  constexpr double kStep = 2e-3;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    SegmentShape s = c.shape;
    s.epsilon = 0.1;                  // the norm of a small output is steep
    if (s.tokens > kShort) continue;  // differences of long recurrences are far from straight
    const at::Tensor u = random({s.sequences, s.tokens, s.in}),
                     d = random({s.sequences, s.tokens, s.out});
    const Tensors weights = weights_of(s), made = forward(s, u, weights, c.context());
    const Gradients g = backward(s, d, u, made[1], weights, Phase::kBG, c.context());
    expect_gradient(
        [&](const at::Tensor& x) {
          return inner_product(forward(s, x, weights, c.context())[0], d);
        },
        u, g.u, kStep);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      expect_gradient(
          [&](const at::Tensor& w) {
            Tensors changed = weights;
            changed[i] = w;
            return inner_product(forward(s, u, changed, c.context())[0], d);
          },
          weights[i], g.weights[i], kStep);
    }
  }
}

TEST_F(Scans, FrozenWeightsTakeNoGradient) {
  for (const SegmentShape& s : {mamba(), delta(), lightning()}) {
    const at::Tensor u = random({s.sequences, s.tokens, s.in}),
                     d = random({s.sequences, s.tokens, s.out});
    const Tensors weights = weights_of(s), made = forward(s, u, weights);
    const Gradients both = backward(s, d, u, made[1], weights);
    const Gradients alone = backward(s, d, u, made[1], weights, Phase::kB);
    EXPECT_TRUE(alone.u.equal(both.u));
    for (const at::Tensor& w : alone.weights) EXPECT_EQ(w.abs().sum().item<float>(), 0);
  }
}

// One head of one value and one key, one tap of weight 1, z = 1e3 (silu(z) = z), gains 1.
TEST_F(Scans, AMambaStateByHand) {
  SegmentShape s = shape_of(SegmentKind::kScan, 0, 1);
  s.sequences = s.heads = s.head_dim = s.kv_heads = s.state = s.kernel = 1;
  s.tokens = 2;
  s.chunk = 2;
  s.in = 5;
  // ln(softplus^-1) chosen: d = softplus(ln(e - 1)) = 1, a = e^(-ln 2) = 1/2, D = 3.
  const float raw = std::log(std::exp(1.0F) - 1);
  const at::Tensor taps = at::ones({3}),
                   vectors =
                       at::tensor({0.0F, 0.0F, 0.0F, std::log(std::log(2.0F)), 3.0F, 0.0F, 1.0F});
  const at::Tensor u = at::tensor({1e3F, 1.0F, 2.0F, 3.0F, raw,  //
                                   1e3F, 2.0F, 1.0F, 1.0F, raw})
                           .view({1, 2, 5});
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  const double h0 = silu(1) * silu(2), h1 = h0 / 2 + silu(2) * silu(1);
  const at::Tensor y = forward(s, u, {taps, vectors})[1];
  EXPECT_NEAR(y[0][0][0].item<double>(), h0 * silu(3) + 3 * silu(1), 1e-5);
  EXPECT_NEAR(y[0][1][0].item<double>(), h1 * silu(1) + 3 * silu(2), 1e-5);
}

// A key written twice with strength 1 and no decay: the second value replaces the first.
TEST_F(Scans, TheDeltaRuleReplacesWhatAKeyHolds) {
  SegmentShape s = shape_of(SegmentKind::kScan, 0, 2);
  s.sequences = s.heads = s.kv_heads = s.kernel = 1;
  s.tokens = 2;
  s.chunk = s.head_dim = s.state = 2;
  s.in = 2 * 2 + 2 * 2 + 2;
  s.delta = true;
  const at::Tensor taps = at::ones({6}), vectors = at::tensor({-80.0F, 0.0F}),
                   gains = at::ones({2});
  const auto token = [](float v0, float v1) {
    return at::tensor({1.0F, 1.0F, v0, v1, 40.0F, -40.0F, 40.0F, -40.0F, 40.0F, 0.0F});
  };
  const at::Tensor u = at::stack({token(1, 2), token(3, 4)}).unsqueeze(0);
  const at::Tensor y = forward(s, u, {taps, vectors, gains})[1];
  const auto held = [](double x) { return x / (1 + std::exp(-x)) / std::sqrt(2.0); };
  for (const int p : {0, 1}) {
    EXPECT_NEAR(y[0][0][p].item<double>(), held(1 + p), 1e-5);
    EXPECT_NEAR(y[0][1][p].item<double>(), held(3 + p), 1e-5);
  }
}

// What a sequence makes does not depend on those beside it, nor on how long chunks are.
TEST_F(Scans, SequencesAreTheirOwnAndChunksChangeNothing) {
  for (const SegmentShape& s : {mamba(), delta(), lightning()}) {
    const at::Tensor u = random({s.sequences, s.tokens, s.in}),
                     d = random({s.sequences, s.tokens, s.out});
    const Tensors weights = weights_of(s), made = forward(s, u, weights);
    SegmentShape one = s;
    one.sequences = 1;
    EXPECT_TRUE(
        forward(one, u.narrow(0, 1, 1).contiguous(), weights)[0].equal(made[0].narrow(0, 1, 1)));
    const Gradients chunks = backward(s, d, u, made[1], weights),
                    whole = backward(with(s, s.tokens, s.tokens), d, u, made[1], weights);
    EXPECT_LT(difference(chunks.u, whole.u.to(at::kDouble)), 1e-6);
  }
}

TEST_F(Scans, RunInBf16) {
  for (SegmentShape s : {mamba(), delta(), lightning()}) {
    const at::Tensor u = random({s.sequences, s.tokens, s.in}).to(at::kBFloat16),
                     d = random({s.sequences, s.tokens, s.out}).to(at::kBFloat16);
    Tensors narrow, wide;
    for (const at::Tensor& w : weights_of(s)) {
      narrow.push_back(w.to(at::kBFloat16));
      wide.push_back(narrow.back().to(at::kFloat));
    }
    const Tensors wanted = forward(s, u.to(at::kFloat), wide);
    const Gradients g = backward(s, d.to(at::kFloat), u.to(at::kFloat), wanted[1], wide);
    s.dtype = model::DType::kBFloat16;
    const auto type = model::DType::kBFloat16;
    Operands f{{u},
               {declared({s.sequences, s.tokens, s.out}, type),
                declared({s.sequences, s.tokens, s.out}, type)},
               {},
               narrow,
               {}};
    run_phase(s, Phase::kF, f);
    EXPECT_LT(difference(f.writes[0].tensor, wanted[0].to(at::kDouble)), 1e-2);
    Tensors gradients;
    for (const at::Tensor& w : wide) gradients.push_back(zeros(w.sizes()));
    Operands b{{d, u, f.writes[1].tensor},
               {declared({s.sequences, s.tokens, s.in}, type)},
               {},
               narrow,
               gradients};
    run_phase(s, Phase::kBG, b);
    EXPECT_LT(difference(b.writes[0].tensor, g.u.to(at::kDouble)), 2e-2);
    for (std::size_t i = 0; i < wide.size(); ++i)
      EXPECT_LT(difference(gradients[i], g.weights[i].to(at::kDouble)), 2e-2);
  }
}

}  // namespace
}  // namespace orrery::executor
