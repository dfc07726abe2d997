// Cross-entropy over shards of the vocabulary, of all tokens and of those with a target.
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/randint.h>

#include "segments_fixture.h"

namespace orrery::executor {
namespace {

using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

class SegmentsOfLoss : public Segments {};

/// Loss and gradient of logits [.., padded] cut into `shards`, reduced as the Program would.
struct Loss {
  double loss = 0;
  at::Tensor gradient;
};
Loss sharded_loss(const at::Tensor& logits, const at::Tensor& targets, std::int64_t vocab,
                  std::int64_t shards, bool masked = false) {
  const std::int64_t tokens = targets.numel(), columns = logits.size(-1) / shards;
  SegmentShape s = shape_of(SegmentKind::kLossMax, 4, columns);
  s.vocab = vocab;
  s.causal = !masked;
  at::Tensor m = at::full({tokens}, -INFINITY), stat = zeros({2, tokens});
  std::vector<at::Tensor> parts;
  SegmentContext context;
  context.loss_scale = 1.0 / static_cast<double>(tokens);
  for (std::int64_t i = 0; i < shards; ++i)
    parts.push_back(logits.narrow(-1, i * columns, columns).contiguous());
  const auto each = [&](SegmentKind kind, Phase phase,
                        const std::function<Operands(std::int64_t)>& make,
                        const std::function<void(Operands&)>& take) {
    s.kind = kind;
    for (std::int64_t i = 0; i < shards; ++i) {
      context.vocabulary_shard = i;
      Operands o = make(i);
      run_phase(s, phase, o, context);
      take(o);
    }
  };
  each(
      SegmentKind::kLossMax, Phase::kF,
      [&](std::int64_t i) {
        return Operands{.reads = {parts[i]},
                        .writes = {declared({tokens})},
                        .updates = {},
                        .weights = {},
                        .gradients = {}};
      },
      [&](Operands& o) { m = at::maximum(m, o.writes[0].tensor); });
  each(
      SegmentKind::kLossSum, Phase::kF,
      [&](std::int64_t i) {
        return Operands{.reads = {parts[i], m, targets},
                        .writes = {declared({2, tokens})},
                        .updates = {},
                        .weights = {},
                        .gradients = {}};
      },
      [&](Operands& o) { stat += o.writes[0].tensor; });
  at::Tensor loss = zeros({1});
  s.kind = SegmentKind::kLoss;
  Operands f{.reads = {stat}, .writes = {}, .updates = {loss}, .weights = {}, .gradients = {}};
  run_phase(s, Phase::kF, f, context);
  each(
      SegmentKind::kLoss, Phase::kB,
      [&](std::int64_t i) {
        return Operands{.reads = {m, stat, targets},
                        .writes = {},
                        .updates = {parts[i]},
                        .weights = {},
                        .gradients = {}};
      },
      [](Operands&) {});
  return {loss.item<double>(), at::cat(parts, -1)};
}

TEST_F(SegmentsOfLoss, ShardedLossIsTheCrossEntropyAndItsGradient) {
  constexpr std::int64_t kVocab = 11, kPadded = 12;
  const at::Tensor logits = random({kBatch, kTokens, kPadded}) * 3;
  const at::Tensor targets =
      at::randint(kVocab, {kBatch, kTokens}, at::TensorOptions().dtype(at::kLong));
  const at::Tensor rows = logits.view({-1, kPadded}).narrow(1, 0, kVocab);
  const at::Tensor p = rows.log_softmax(1);
  const double expected = -p.gather(1, targets.view({-1, 1})).mean().item<double>();
  for (const std::int64_t shards : {1, 2, 4}) {
    SCOPED_TRACE(shards);
    const Loss loss = sharded_loss(logits.clone(), targets, kVocab, shards);
    EXPECT_NEAR(loss.loss, expected, 1e-6 * std::abs(expected));
    const at::Tensor g = loss.gradient.view({-1, kPadded});
    at::Tensor e = p.exp();
    e.scatter_add_(1, targets.view({-1, 1}), at::full({kBatch * kTokens, 1}, -1.0));
    EXPECT_TRUE(at::allclose(g.narrow(1, 0, kVocab), e / (kBatch * kTokens), 1e-4, 1e-7));
    EXPECT_EQ(g.narrow(1, kVocab, kPadded - kVocab).abs().max().item<float>(), 0)
        << "padding has no gradient";
  }
}

TEST_F(SegmentsOfLoss, MaskedLossIsThatOfTheTokensWithATarget) {
  constexpr std::int64_t kVocab = 12;
  const at::Tensor logits = random({kBatch, kTokens, kVocab}) * 3;
  at::Tensor targets = at::randint(kVocab, {kBatch, kTokens}, at::TensorOptions().dtype(at::kLong));
  for (const std::int64_t shards : {1, 3}) {
    const Loss all = sharded_loss(logits.clone(), targets, kVocab, shards);
    at::Tensor one = targets.clone();
    one.fill_(-1)[1][2] = targets[1][2];
    const Loss masked = sharded_loss(logits.clone(), one, kVocab, shards, true);
    const at::Tensor row = logits[1][2].log_softmax(0);
    EXPECT_NEAR(masked.loss, -row[targets[1][2].item<std::int64_t>()].item<double>() / 12, 1e-6);
    at::Tensor expected = zeros(logits.sizes());
    expected[1][2] = all.gradient[1][2];
    EXPECT_TRUE(at::equal(masked.gradient, expected));
  }
}

}  // namespace
}  // namespace orrery::executor
