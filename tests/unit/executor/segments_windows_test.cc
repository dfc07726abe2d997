// Attention in windows with biases of relative positions, pooling, and norms of joined neighbours.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "model/windows.h"
#include "segments_fixture.h"

namespace orrery::executor {
namespace {

using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

using Tensors = std::vector<at::Tensor>;
Operands operands(Tensors reads, std::vector<Output> writes, Tensors weights = {},
                  Tensors gradients = {}) {
  return {std::move(reads), std::move(writes), {}, std::move(weights), std::move(gradients)};
}

class Windows : public Segments {};

// 10 windows of 7 x 7 with 16 heads: made 6 and 4 at a time.
SegmentShape windows() {
  SegmentShape s = shape_of(SegmentKind::kAttention, 0, 0);
  s.sequences = 10;
  s.tokens = 49;
  s.heads = s.kv_heads = 16;
  s.head_dim = 4;
  s.causal = false;
  s.weights = 16 * 13 * 13;
  return s;
}
constexpr std::int64_t kImages = 2, kWide = 16 * 4;

/// o [n, 49, wide] of qkv of n windows and the table [16, 169], in fp64; `apart`: true where two
/// tokens do not see each other.
at::Tensor written_out(const at::Tensor& qkv, const at::Tensor& table,
                       const at::Tensor& apart = {}) {
  const auto part = [&](std::int64_t i) {
    return qkv.view({-1, 49, 3 * kWide})
        .narrow(2, i * kWide, kWide)
        .view({-1, 49, 16, 4})
        .transpose(1, 2);
  };
  const at::Tensor place = at::arange(49, at::kLong), row = at::div(place, 7, "floor"),
                   column = at::remainder(place, 7);
  const at::Tensor of_bias = (row.unsqueeze(1) - row.unsqueeze(0) + 6) * 13 + column.unsqueeze(1) -
                             column.unsqueeze(0) + 6;
  at::Tensor scores = at::matmul(part(0), part(1).transpose(2, 3)) / 2 +
                      table.index_select(1, of_bias.flatten()).view({16, 49, 49});
  if (apart.defined()) scores = scores.masked_fill(apart, -INFINITY);
  return at::matmul(at::softmax(scores, -1), part(2)).transpose(1, 2).flatten(2);
}

TEST_F(Windows, AddTheBiasOfTwoPlacesDifferenceAndTrainIt) {
  const SegmentShape s = windows();
  ASSERT_EQ(model::windows_at_once(s), 6);
  const at::Tensor qkv = random({kImages, 245, 3 * kWide}), table = random({16, 169}),
                   d = random({kImages, 245, kWide});
  at::Tensor x = qkv.to(at::kDouble).requires_grad_(true),
             w = table.to(at::kDouble).requires_grad_(true);
  const at::Tensor expected = written_out(x, w);
  expected.backward(d.to(at::kDouble).view(expected.sizes()));

  Operands forward =
      operands({qkv}, {declared({kImages, 245, kWide}), declared({kImages, 16, 245})}, {table});
  run_phase(s, Phase::kF, forward);
  const at::Tensor o = forward.writes[0].tensor;
  EXPECT_TRUE(at::allclose(o.to(at::kDouble), expected.view(o.sizes()), 1e-5, 1e-5));
  Operands backward =
      operands({d, qkv, o, forward.writes[1].tensor}, {declared({kImages, 245, 3 * kWide})},
               {table}, {zeros({16, 169}).fill_(3)});
  run_phase(s, Phase::kBG, backward);
  EXPECT_TRUE(at::allclose(backward.writes[0].tensor.to(at::kDouble), x.grad(), 1e-4, 1e-5));
  // added to what is there
  EXPECT_TRUE(at::allclose(backward.gradients[0].to(at::kDouble) - 3, w.grad(), 1e-4, 1e-4));
}

/// The same of two images of 14 x 14, qkv [2, 196, 3 wide] by rows, in windows of 7 x 7 shifted
/// by 3.
at::Tensor shifted_windows(const at::Tensor& qkv, const at::Tensor& table) {
  const auto cut = [](const at::Tensor& image) {
    return image.view({kImages, 2, 7, 2, 7, -1}).permute({0, 1, 3, 2, 4, 5}).reshape({8, 49, -1});
  };
  const at::Tensor a = cut(at::roll(qkv.view({kImages, 14, 14, 3 * kWide}), {-3, -3}, {1, 2}));
  at::Tensor part = at::zeros({kImages, 14, 14, 1});
  part.slice(1, 7, 11).add_(1);
  part.slice(1, 11, 14).add_(2);
  part.slice(2, 7, 11).add_(10);
  part.slice(2, 11, 14).add_(20);
  const at::Tensor of_place = cut(part).squeeze(-1),
                   apart = of_place.unsqueeze(1).ne(of_place.unsqueeze(2)).unsqueeze(1);
  const at::Tensor o = written_out(a, table, apart);
  return at::roll(o.view({kImages, 2, 2, 7, 7, kWide})
                      .permute({0, 1, 3, 2, 4, 5})
                      .reshape({kImages, 14, 14, kWide}),
                  {3, 3}, {1, 2})
      .view({kImages, 196, kWide});
}

// Eight windows, made 6 and 2 at a time, of block 1 of a stage whose tokens merge once.
TEST_F(Windows, AreSquaresThatEveryOtherBlockShifts) {
  SegmentShape s = windows();
  s.sequences = 8;
  s.windows = {.tokens = 196, .merges = 1};
  SegmentContext second;
  second.layer = 1;
  std::vector<std::int64_t> token;  // at each place of an image, by rows
  for (std::int64_t at = 0; at < 196; ++at)
    token.push_back(model::token_at(s.windows, at / 14, at % 14));
  const at::Tensor by_rows = at::tensor(token, at::kLong);
  for (const model::DType type : {model::DType::kFloat32, model::DType::kBFloat16}) {
    s.dtype = type;
    const double most = type == model::DType::kFloat32 ? 1e-4 : 4e-2;
    const at::ScalarType t = scalar_type(type);
    const at::Tensor qkv = random({kImages, 196, 3 * kWide}).to(t), table = random({16, 169}).to(t),
                     d = random({kImages, 196, kWide}).to(t);
    at::Tensor x = qkv.to(at::kDouble).requires_grad_(true),
               w = table.to(at::kDouble).requires_grad_(true);
    const at::Tensor expected = shifted_windows(x.index_select(1, by_rows), w);
    expected.backward(d.to(at::kDouble).index_select(1, by_rows));
    Operands forward = operands(
        {qkv}, {declared({kImages, 196, kWide}, type), declared({kImages, 16, 196})}, {table});
    run_phase(s, Phase::kF, forward, second);
    const at::Tensor o = forward.writes[0].tensor;
    EXPECT_TRUE(at::allclose(o.to(at::kDouble).index_select(1, by_rows), expected, most, most));
    Operands backward =
        operands({d, qkv, o, forward.writes[1].tensor}, {declared({kImages, 196, 3 * kWide}, type)},
                 {table}, {zeros({16, 169})});
    run_phase(s, Phase::kBG, backward, second);
    EXPECT_TRUE(at::allclose(backward.writes[0].tensor.to(at::kDouble), x.grad(), most, most));
    EXPECT_TRUE(at::allclose(backward.gradients[0].to(at::kDouble), w.grad(), most, 10 * most));
  }
}

TEST_F(Windows, WorkInBf16) {
  SegmentShape s = windows();
  s.dtype = model::DType::kBFloat16;
  const at::Tensor qkv = random({kImages, 245, 3 * kWide}).to(at::kBFloat16),
                   table = random({16, 169}).to(at::kBFloat16);
  Operands forward = operands(
      {qkv}, {declared({kImages, 245, kWide}, s.dtype), declared({kImages, 16, 245})}, {table});
  run_phase(s, Phase::kF, forward);
  const at::Tensor o = forward.writes[0].tensor,
                   expected = written_out(qkv.to(at::kDouble), table.to(at::kDouble));
  EXPECT_TRUE(at::allclose(o.to(at::kDouble), expected.view(o.sizes()), 1e-2, 1e-2));
  Operands backward =
      operands({o, qkv, o, forward.writes[1].tensor},
               {declared({kImages, 245, 3 * kWide}, s.dtype)}, {table}, {zeros({16, 169})});
  run_phase(s, Phase::kBG, backward);
  EXPECT_EQ(backward.writes[0].tensor.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(backward.gradients[0].isfinite().all().item<bool>());
}

TEST_F(Segments, PoolIsTheMeanOfTheFirstTokens) {
  SegmentShape s = shape_of(SegmentKind::kPool, 5, 5);
  const at::Tensor x = random({kBatch, kTokens, 5}), d = random({kBatch, 1, 5});
  for (const std::int64_t tokens : {std::int64_t{1}, kTokens}) {
    s.kv_tokens = tokens;
    Operands forward = operands({x}, {declared({kBatch, 1, 5})});
    run_phase(s, Phase::kF, forward);
    EXPECT_TRUE(at::allclose(forward.writes[0].tensor, x.narrow(1, 0, tokens).mean(1, true)));
    Operands backward = operands({d}, {declared({kBatch, kTokens, 5})});
    run_phase(s, Phase::kB, backward);
    at::Tensor expected = zeros({kBatch, kTokens, 5});
    expected.narrow(1, 0, tokens).add_(d / static_cast<double>(tokens));
    EXPECT_TRUE(at::allclose(backward.writes[0].tensor, expected));
  }
}

// 6 tokens of 8 numbers out of 24 of 2.
TEST_F(Segments, ANormJoinsNeighbours) {
  SegmentShape s = shape_of(SegmentKind::kNorm, 8, 8);
  const at::Tensor x = random({kBatch, 4 * kTokens, 2}), gain = random({8}), bias = random({8}),
                   d = random({kBatch, kTokens, 8});
  for (const model::NormKind kind : {model::NormKind::kLayerNorm, model::NormKind::kRmsNorm}) {
    s.norm = kind;
    const bool layer = kind == model::NormKind::kLayerNorm;
    at::Tensor joined = x.view({kBatch, kTokens, 8}).detach().clone().requires_grad_(true);
    const at::Tensor expected =
        layer ? at::layer_norm(joined, {8}, gain, bias, s.epsilon)
              : joined * (joined.square().mean(-1, true) + s.epsilon).rsqrt() * gain;
    expected.backward(d);
    const std::vector<Output> statistics(layer ? 2 : 1, declared({kBatch * kTokens}));
    std::vector<Output> made{declared({kBatch, kTokens, 8})};
    made.insert(made.end(), statistics.begin(), statistics.end());
    const Tensors weights = layer ? Tensors{gain, bias} : Tensors{gain};
    Operands forward = operands({x}, made, weights);
    run_phase(s, Phase::kF, forward);
    EXPECT_TRUE(at::allclose(forward.writes[0].tensor, expected, 1e-5, 1e-6));
    Tensors reads{d, x};
    for (std::size_t i = 1; i < forward.writes.size(); ++i)
      reads.push_back(forward.writes[i].tensor);
    Operands backward =
        operands(reads, {declared({kBatch, 4 * kTokens, 2})}, weights, {zeros({8}), zeros({8})});
    run_phase(s, Phase::kBG, backward);
    EXPECT_TRUE(at::allclose(backward.writes[0].tensor, joined.grad().view(x.sizes()), 1e-4, 1e-5));
  }
}

TEST_F(Segments, TheClassTokensRowIsAddedToTheFirstTokenAlone) {
  SegmentShape s = shape_of(SegmentKind::kPositionAdd, 3, kTokens);
  s.kv_tokens = 1;
  const at::Tensor x = random({kBatch, kTokens, 3}), position = random({kTokens, 3}),
                   token = random({1, 3});
  Operands forward = operands({x}, {declared({kBatch, kTokens, 3})}, {position, token});
  run_phase(s, Phase::kF, forward);
  at::Tensor expected = x + position;
  expected.select(1, 0).add_(token);
  EXPECT_TRUE(at::allclose(forward.writes[0].tensor, expected));
  Operands backward = operands({x}, {}, {}, {zeros({kTokens, 3}), zeros({1, 3})});
  run_phase(s, Phase::kBG, backward);
  EXPECT_TRUE(at::allclose(backward.gradients[0], x.sum(0)));
  EXPECT_TRUE(at::allclose(backward.gradients[1], x.sum(0).narrow(0, 0, 1)));
}

}  // namespace
}  // namespace orrery::executor
