// Experts: choices, gates and slots by hand, products against plain ones, and every backward phase
// against differences of the forward.
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include "segments_fixture.h"

namespace orrery::executor {
namespace {

using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

constexpr std::int64_t kLength = 5, kWidth = 6, kExperts = 4, kChoices = 2;

SegmentShape routed(SegmentKind kind, bool shared) {
  SegmentShape s = shape_of(kind, kWidth, kWidth);
  s.tokens = kLength;
  s.experts = kExperts;
  s.top_k = kChoices;
  s.shared = shared;
  s.capacity = kind == SegmentKind::kRouter ? 0 : 3;
  return s;
}

Operands route(const SegmentShape& s, const at::Tensor& a, std::vector<at::Tensor> weights) {
  Operands o{.reads = {a},
             .writes = {declared({kBatch, kLength, s.gates()}),
                        declared({kBatch, kLength, kChoices}, model::DType::kInt64),
                        declared({kBatch, kLength, kExperts})},
             .updates = {},
             .weights = std::move(weights),
             .gradients = {}};
  run_phase(s, Phase::kF, o);
  return o;
}

class Experts : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { at::manual_seed(3); }
  const bool shared_ = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Shared, Experts, ::testing::Bool());

TEST_P(Experts, GatesAreTheLargestProbabilitiesMadeToAddUpToOne) {
  const SegmentShape s = routed(SegmentKind::kRouter, shared_);
  const at::Tensor a = at::randn({kBatch, kLength, kWidth}), w = at::randn({kExperts, kWidth}),
                   shared = at::randn({1, kWidth});
  const Operands o = route(s, a, shared_ ? std::vector{w, shared} : std::vector{w});
  const at::Tensor p = at::softmax(a.matmul(w.t()), -1);
  EXPECT_TRUE(at::allclose(o.writes[2].tensor, p, 1e-5, 1e-6));
  const auto [values, indices] = p.topk(kChoices, -1);
  EXPECT_TRUE(at::equal(o.writes[1].tensor, indices));
  const at::Tensor& gates = o.writes[0].tensor;
  EXPECT_TRUE(
      at::allclose(gates.narrow(2, 0, kChoices), values / values.sum(-1, true), 1e-5, 1e-6));
  if (!shared_) return;
  const at::Tensor of_shared = at::sigmoid(a.matmul(shared.t()));
  EXPECT_TRUE(at::allclose(gates.narrow(2, kChoices, 1), of_shared, 1e-5, 1e-6));
}

TEST_P(Experts, GatesAreChosenScoresTimesAScale) {
  SegmentShape s = routed(SegmentKind::kRouter, false);
  const at::Tensor a = at::randn({kBatch, kLength, kWidth}), w = at::randn({kExperts, kWidth}),
                   l = a.matmul(w.t());
  for (const bool sigmoid : {false, true}) {
    for (const bool normalised : {false, true}) {
      s.routing = {.sigmoid = sigmoid, .normalised = normalised, .scale = 2.5};
      const Operands o = route(s, a, {w});
      const at::Tensor p = sigmoid ? at::sigmoid(l) : at::softmax(l, -1);
      EXPECT_TRUE(at::allclose(o.writes[2].tensor, p, 1e-5, 1e-6));
      const auto [values, indices] = p.topk(kChoices, -1);
      EXPECT_TRUE(at::equal(o.writes[1].tensor, indices));
      const at::Tensor gates = normalised ? values / values.sum(-1, true) : values;
      EXPECT_TRUE(at::allclose(o.writes[0].tensor, 2.5 * gates, 1e-5, 1e-6));
    }
  }
}

// Two groups of two experts. Logits 3, -5, 2, 2: the largest is in group 0, but sigma(3) +
// sigma(-5) = 0.96 is less than 2 sigma(2) = 1.76.
TEST_F(Segments, ATokenGoesToExpertsOfTheBestGroupAlone) {
  SegmentShape s = routed(SegmentKind::kRouter, false);
  s.sequences = s.tokens = 1;
  const at::Tensor w = at::eye(kExperts, kWidth),
                   a = at::tensor({3.0F, -5.0F, 2.0F, 2.0F, 0.0F, 0.0F}).view({1, 1, kWidth});
  const auto chosen = [&](const model::Routing& routing) {
    s.routing = routing;
    Operands o{
        .reads = {a},
        .writes = {declared({1, 1, kChoices}), declared({1, 1, kChoices}, model::DType::kInt64),
                   declared({1, 1, kExperts})},
        .updates = {},
        .weights = {w},
        .gradients = {}};
    run_phase(s, Phase::kF, o);
    return o.writes[1].tensor.flatten();
  };
  const auto experts = [](std::int64_t first, std::int64_t second) {
    return at::tensor({first, second}, at::kLong);
  };
  EXPECT_TRUE(at::equal(chosen({}), experts(0, 2)));
  EXPECT_TRUE(at::equal(chosen({.groups = 2, .groups_per_token = 2}), experts(0, 2)));
  EXPECT_TRUE(at::equal(chosen({.groups = 2}), experts(0, 1)));
  EXPECT_TRUE(at::equal(chosen({.sigmoid = true, .groups = 2}), experts(2, 3)));
  EXPECT_TRUE(
      at::equal(chosen({.sigmoid = true, .groups = 4, .groups_per_token = 2}), experts(0, 2)));
}

TEST_P(Experts, SigmoidsThatAreAllZeroGiveGatesOfZero) {
  SegmentShape s = routed(SegmentKind::kRouter, false);
  s.routing.sigmoid = true;
  const Operands o =
      route(s, at::ones({kBatch, kLength, kWidth}), {at::full({kExperts, kWidth}, -100.0F)});
  EXPECT_TRUE(at::equal(o.writes[0].tensor, at::zeros({kBatch, kLength, kChoices})));
}

TEST_P(Experts, OfEqualProbabilitiesTheFirstExpertsAreChosen) {
  const SegmentShape s = routed(SegmentKind::kRouter, false);
  const Operands o =
      route(s, at::randn({kBatch, kLength, kWidth}), {at::zeros({kExperts, kWidth})});
  EXPECT_TRUE(at::equal(o.writes[1].tensor,
                        at::tensor({0, 1}, at::kLong).expand({kBatch, kLength, kChoices})));
}

const model::Routing kRoutings[] = {
    {},
    {.normalised = false},
    {.sigmoid = true},
    {.sigmoid = true, .normalised = false},
    {.groups = 2, .normalised = false, .scale = 16},
    {.sigmoid = true, .groups = 4, .groups_per_token = 2, .scale = 2.5}};

void expect_router_gradients(SegmentShape s, const model::Routing& routing) {
  s.routing = routing;

  const at::Tensor a = at::randn({kBatch, kLength, kWidth}), w = at::randn({kExperts, kWidth}),
                   shared = at::randn({1, kWidth}), r = at::randn({kBatch, kLength, s.gates()});
  const auto weights = [&](const at::Tensor& of_router) {
    return s.shared ? std::vector{of_router, shared} : std::vector{of_router};
  };
  const auto value = [&](const at::Tensor& a1, const std::vector<at::Tensor>& w1) {
    return inner_product(route(s, a1, w1).writes[0].tensor, r);
  };
  const Operands f = route(s, a, weights(w));
  Operands o{.reads = {r, a, f.writes[0].tensor, f.writes[1].tensor, f.writes[2].tensor},
             .writes = {declared({kBatch, kLength, kWidth})},
             .updates = {},
             .weights = weights(w),
             .gradients = {at::zeros({kExperts, kWidth})}};
  if (s.shared) o.gradients.push_back(at::zeros({1, kWidth}));
  run_phase(s, Phase::kBG, o);
  expect_gradient([&](const at::Tensor& t) { return value(t, weights(w)); }, a, o.writes[0].tensor,
                  1e-3);
  expect_gradient([&](const at::Tensor& t) { return value(a, weights(t)); }, w, o.gradients[0],
                  1e-3);
  if (s.shared)
    expect_gradient([&](const at::Tensor& t) { return value(a, {w, t}); }, shared, o.gradients[1]);
  const at::Tensor once = o.gradients[0].clone();
  run_phase(s, Phase::kG, o);
  EXPECT_TRUE(at::allclose(o.gradients[0], 2 * once, 1e-5, 1e-6));
}

TEST_P(Experts, RouterGradientsMatchDifferencesAndAccumulate) {
  for (const model::Routing& routing : kRoutings) {
    SCOPED_TRACE(&routing - kRoutings);
    expect_router_gradients(routed(SegmentKind::kRouter, shared_), routing);
  }
}

/// Of the first sequence every token goes to expert 0, and in turn to another.
at::Tensor choices() {
  return at::tensor({0, 1, 0, 2, 0, 3, 0, 1, 0, 2, 3, 1, 2, 0, 1, 3, 2, 1, 0, 3}, at::kLong)
      .view({kBatch, kLength, kChoices});
}

/// With gates of inputs, where there are any.
Operands sent(const SegmentShape& s, const at::Tensor& a, const at::Tensor& gates = {}) {
  Operands o{.reads = {a, choices()},
             .writes = {declared({s.expert_rows(), kWidth}, s.dtype),
                        declared({kBatch, kLength, kChoices}, model::DType::kInt64)},
             .updates = {},
             .weights = {},
             .gradients = {}};
  if (gates.defined()) o.reads.push_back(gates);
  run_phase(s, Phase::kF, o);
  return o;
}
/// What comes back of `d`: gradients of tokens and gates.
Operands returned(const SegmentShape& s, const at::Tensor& d, const at::Tensor& a,
                  const at::Tensor& gates, const at::Tensor& slots) {
  Operands o{.reads = {d, slots, gates, a},
             .writes = {declared({kBatch, kLength, kWidth}, s.dtype),
                        declared({kBatch, kLength, kChoices})},
             .updates = {},
             .weights = {},
             .gradients = {}};
  run_phase(s, Phase::kB, o);
  return o;
}
/// Combine without gates: sums of rows, or the rows' gradients of those sums.
at::Tensor combined(const SegmentShape& s, Phase phase, const at::Tensor& read,
                    const at::Tensor& slots) {
  Operands o{.reads = {read, slots},
             .writes = {phase == Phase::kF ? declared({kBatch, kLength, kWidth}, s.dtype)
                                           : declared({s.expert_rows(), kWidth}, s.dtype)},
             .updates = {},
             .weights = {},
             .gradients = {}};
  run_phase(s, phase, o);
  return o.writes[0].tensor;
}

TEST_P(Experts, RowsLieByExpertSequenceAndTokenUpToTheCapacity) {
  const SegmentShape s = routed(SegmentKind::kDispatch, shared_);
  const at::Tensor a = at::randn({kBatch, kLength, kWidth});
  const Operands o = sent(s, a);
  // (expert * 2 sequences + sequence) * 3 rows + row
  EXPECT_TRUE(
      at::equal(o.writes[1].tensor.flatten(), at::tensor({0,  6, 1,  12, 2,  18, -1, 7,  -1, 13,  //
                                                          21, 9, 15, 3,  10, 22, 16, 11, 4,  23},
                                                         at::kLong)));
  const at::Tensor& rows = o.writes[0].tensor;
  EXPECT_TRUE(at::equal(rows[12], a[0][1]));
  EXPECT_TRUE(at::equal(rows[11], a[1][3]));
  for (const std::int64_t unused : {5, 8, 14, 17, 19, 20})
    EXPECT_EQ(rows[unused].abs().sum().item<float>(), 0) << unused;
}

TEST_P(Experts, DispatchAddsWhatComesBackToEachToken) {
  const SegmentShape s = routed(SegmentKind::kDispatch, shared_);
  const at::Tensor a = at::randn({kBatch, kLength, kWidth}),
                   r = at::randn({s.expert_rows(), kWidth});
  Operands o{.reads = {r, sent(s, a).writes[1].tensor},
             .writes = {declared({kBatch, kLength, kWidth})},
             .updates = {},
             .weights = {},
             .gradients = {}};
  run_phase(s, Phase::kB, o);
  expect_gradient(
      [&](const at::Tensor& t) { return inner_product(sent(s, t).writes[0].tensor, r); }, a,
      o.writes[0].tensor);
  EXPECT_TRUE(at::allclose(o.writes[0].tensor[0][3], r[7])) << "its other choice was dropped";
}

TEST_P(Experts, CombineGradientsMatchDifferencesAndDroppedChoicesCountForNothing) {
  const SegmentShape s = routed(SegmentKind::kCombine, shared_);
  const at::Tensor slots =
      sent(routed(SegmentKind::kDispatch, shared_), at::zeros({kBatch, kLength, kWidth}))
          .writes[1]
          .tensor;
  const at::Tensor rows = at::randn({s.expert_rows(), kWidth}),
                   gates = at::randn({kBatch, kLength, s.gates()}),
                   z = at::randn({kBatch, kLength, kWidth}),
                   r = at::randn({kBatch, kLength, kWidth});
  const auto value = [&](const at::Tensor& rows1, const at::Tensor& gates1, const at::Tensor& z1) {
    Operands o{.reads = {rows1, gates1, slots},
               .writes = {declared({kBatch, kLength, kWidth})},
               .updates = {},
               .weights = {},
               .gradients = {}};
    if (shared_) o.reads.push_back(z1);
    run_phase(s, Phase::kF, o);
    return inner_product(o.writes[0].tensor, r);
  };
  Operands o{
      .reads = {r, rows, gates, slots},
      .writes = {declared({s.expert_rows(), kWidth}), declared({kBatch, kLength, s.gates()})},
      .updates = {},
      .weights = {},
      .gradients = {}};
  if (shared_) {
    o.reads.push_back(z);
    o.writes.push_back(declared({kBatch, kLength, kWidth}));
  }
  run_phase(s, Phase::kB, o);
  expect_gradient([&](const at::Tensor& t) { return value(t, gates, z); }, rows,
                  o.writes[0].tensor);
  expect_gradient([&](const at::Tensor& t) { return value(rows, t, z); }, gates,
                  o.writes[1].tensor);
  if (shared_)
    expect_gradient([&](const at::Tensor& t) { return value(rows, gates, t); }, z,
                    o.writes[2].tensor);
  EXPECT_EQ(o.writes[1].tensor[0][4][0].item<float>(), 0) << "a dropped choice's gate";
  EXPECT_EQ(o.writes[0].tensor[5].abs().sum().item<float>(), 0) << "a row of no token";
}

SegmentShape of_inputs(SegmentKind kind, model::DType type = model::DType::kFloat32) {
  SegmentShape s = routed(kind, false);
  s.dtype = type;
  s.routing.of_inputs = true;
  return s;
}

// Llama 4: rows times their gates, and sums of what comes back.
TEST_F(Segments, GatesOfInputsWeightWhatExpertsRead) {
  const SegmentShape s = of_inputs(SegmentKind::kDispatch), sums = of_inputs(SegmentKind::kCombine);
  const at::Tensor a = at::randn({kBatch, kLength, kWidth}),
                   gates = at::randn({kBatch, kLength, kChoices}),
                   r = at::randn({s.expert_rows(), kWidth}),
                   d = at::randn({kBatch, kLength, kWidth});
  const Operands f = sent(s, a, gates);
  const at::Tensor slots = f.writes[1].tensor;
  EXPECT_TRUE(at::allclose(f.writes[0].tensor[12], gates[0][1][1] * a[0][1]));
  const Operands b = returned(s, r, a, gates, slots);
  const auto value = [&](const at::Tensor& a1, const at::Tensor& gates1) {
    return inner_product(sent(s, a1, gates1).writes[0].tensor, r);
  };
  expect_gradient([&](const at::Tensor& t) { return value(t, gates); }, a, b.writes[0].tensor);
  expect_gradient([&](const at::Tensor& t) { return value(a, t); }, gates, b.writes[1].tensor);
  EXPECT_EQ(b.writes[1].tensor[0][4][0].item<float>(), 0) << "a dropped choice's gate";
  expect_gradient(
      [&](const at::Tensor& t) { return inner_product(combined(sums, Phase::kF, t, slots), d); }, r,
      combined(sums, Phase::kB, d, slots));
}

// Sums and gates are fp32: what comes of bf16 is the rounded result of the same numbers in fp32.
TEST_F(Segments, GatesOfInputsInBf16AreTheRoundedOnes) {
  const auto rounded = [](std::vector<std::int64_t> shape) {
    return at::randn(shape).to(at::kBFloat16);
  };
  const at::Tensor a = rounded({kBatch, kLength, kWidth}),
                   gates = at::randn({kBatch, kLength, kChoices}),
                   r = rounded({of_inputs(SegmentKind::kDispatch).expert_rows(), kWidth});
  std::vector<std::vector<at::Tensor>> found;
  for (const model::DType type : {model::DType::kBFloat16, model::DType::kFloat32}) {
    const SegmentShape s = of_inputs(SegmentKind::kDispatch, type),
                       sums = of_inputs(SegmentKind::kCombine, type);
    const at::Tensor a1 = a.to(scalar_type(type)), r1 = r.to(scalar_type(type));
    const Operands f = sent(s, a1, gates);
    const at::Tensor slots = f.writes[1].tensor;
    const Operands b = returned(s, r1, a1, gates, slots);
    found.push_back({f.writes[0].tensor, b.writes[0].tensor, b.writes[1].tensor,
                     combined(sums, Phase::kB, a1, slots), combined(sums, Phase::kF, r1, slots)});
  }
  for (std::size_t i = 0; i < found[0].size(); ++i)
    EXPECT_TRUE(at::equal(found[0][i], found[1][i].to(found[0][i].scalar_type()))) << i;
}

/// Two sources, two experts of this rank, 3 rows of each of two sequences.
SegmentShape product_of(SegmentKind kind, bool gated) {
  SegmentShape s = routed(kind, false);
  s.out = 8;
  s.experts = 2;
  s.tokens = 2 * s.experts * s.capacity;
  s.gated = gated;
  return s;
}

/// y = x W^T (+ bias of this rank's features) of one expert, dx = dy W, dW = dy^T x, db = sum dy.
TEST_P(Experts, ProductsAreThoseOfEachExpertsRows) {
  SegmentContext second;
  second.local_rank = 1;
  for (const SegmentKind kind : {SegmentKind::kExpertIn, SegmentKind::kExpertOut}) {
    SegmentShape s = product_of(kind, GetParam());
    s.bias = true;
    if (kind == SegmentKind::kExpertOut) s.parts = 2;  // this rank's bias: features 4 to 7
    const std::int64_t parts = s.gated && kind == SegmentKind::kExpertIn ? 2 : 1,
                       width = s.out / parts, rows = 2 * s.capacity, biased = width / s.parts;
    const at::Tensor x = at::randn({4 * rows, kWidth}), w = at::randn({parts, 2, width, kWidth}),
                     dy = at::randn({4 * rows, s.out}), bias = at::randn({parts, 2, biased});
    Operands f{.reads = {x},
               .writes = {declared({4 * rows, s.out})},
               .updates = {},
               .weights = {w, bias},
               .gradients = {}};
    run_phase(s, Phase::kF, f, second);
    Operands b{.reads = {dy, x},
               .writes = {declared({4 * rows, kWidth})},
               .updates = {},
               .weights = {w, bias},
               .gradients = {at::zeros(w.sizes()), at::zeros(bias.sizes())}};
    run_phase(s, Phase::kBG, b, second);
    at::Tensor dw = at::zeros({2, s.out, kWidth}), db = at::zeros({2, parts * biased});
    const std::int64_t first = s.out - parts * biased;
    for (std::int64_t block = 0; block < 4; ++block) {
      const auto of_block = [&](const at::Tensor& t) { return t.narrow(0, block * rows, rows); };
      const std::int64_t e = block % 2;
      const at::Tensor own = w.select(1, e).reshape({s.out, kWidth});
      at::Tensor y = of_block(x).matmul(own.t());
      y.narrow(1, first, parts * biased).add_(bias.select(1, e).flatten());
      EXPECT_TRUE(at::allclose(of_block(f.writes[0].tensor), y, 1e-4, 1e-5));
      EXPECT_TRUE(at::allclose(of_block(b.writes[0].tensor), of_block(dy).matmul(own), 1e-4, 1e-5));
      dw[e] += of_block(dy).t().matmul(of_block(x));
      db[e] += of_block(dy).narrow(1, first, parts * biased).sum(0);
    }
    const auto by_part = [&](const at::Tensor& t) {
      return t.view({2, parts, -1}).transpose(0, 1).flatten();
    };
    EXPECT_TRUE(at::allclose(b.gradients[0].flatten(), by_part(dw), 1e-4, 1e-5));
    EXPECT_TRUE(at::allclose(b.gradients[1].flatten(), by_part(db), 1e-4, 1e-5));
    // Apart, as a schedule that delays weight gradients has them: the same, and gradients add.
    Operands apart{.reads = {dy},
                   .writes = {declared({4 * rows, kWidth})},
                   .updates = {},
                   .weights = {w, bias},
                   .gradients = {}};
    run_phase(s, Phase::kB, apart, second);
    EXPECT_TRUE(at::equal(apart.writes[0].tensor, b.writes[0].tensor));
    const at::Tensor once = b.gradients[0].clone();
    run_phase(s, Phase::kG, b, second);
    EXPECT_TRUE(at::allclose(b.gradients[0], 2 * once, 1e-4, 1e-5));
  }
}

TEST_P(Experts, InBf16TheyAreTheRoundedOnes) {
  SegmentShape s = routed(SegmentKind::kRouter, shared_);
  const auto rounded = [](std::vector<std::int64_t> shape) {
    return at::randn(shape).to(at::kBFloat16);
  };
  const at::Tensor a = rounded({kBatch, kLength, kWidth}), w = rounded({kExperts, kWidth}),
                   shared = rounded({1, kWidth});
  const auto gates = [&](model::DType type) {
    s.dtype = type;
    const at::ScalarType t = scalar_type(type);
    const std::vector<at::Tensor> weights =
        shared_ ? std::vector{w.to(t), shared.to(t)} : std::vector{w.to(t)};
    return route(s, a.to(t), weights).writes[0].tensor;
  };
  EXPECT_TRUE(at::allclose(gates(model::DType::kBFloat16), gates(model::DType::kFloat32), 0, 3e-2));

  SegmentShape in = routed(SegmentKind::kDispatch, shared_);
  in.dtype = model::DType::kBFloat16;
  const at::Tensor d = rounded({in.expert_rows(), kWidth});
  const at::Tensor slots =
      sent(routed(SegmentKind::kDispatch, shared_), at::zeros({kBatch, kLength, kWidth}))
          .writes[1]
          .tensor;
  Operands o{.reads = {d, slots},
             .writes = {declared({kBatch, kLength, kWidth}, model::DType::kBFloat16)},
             .updates = {},
             .weights = {},
             .gradients = {}};
  run_phase(in, Phase::kB, o);
  EXPECT_TRUE(at::equal(o.writes[0].tensor[1][0],
                        (d[21].to(at::kFloat) + d[9].to(at::kFloat)).to(at::kBFloat16)));
}

}  // namespace
}  // namespace orrery::executor
