// Segments of partitioned operators on the devices of a partition, one after another in one
// process: they make what the conventional segments make of the whole.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "executor/segments/segments.h"
#include "executor/state/state.h"

namespace orrery::executor {
namespace {

using model::Phase;
using model::SegmentKind;
using model::SegmentShape;
using Tensors = std::vector<at::Tensor>;
using Shapes = std::vector<std::vector<std::int64_t>>;

constexpr std::int64_t kBatch = 2, kTokens = 8, kHeads = 4, kKeyHeads = 2, kHeadDim = 4;

struct Runner {
  RotaryTables rotary;
  Tensors gradients = {};
  Tensors operator()(const SegmentShape& s, Phase phase, int device, Tensors reads,
                     const Shapes& writes, Tensors weights = {}) {
    Operands o{.reads = std::move(reads),
               .writes = {},
               .updates = {},
               .weights = std::move(weights),
               .gradients = gradients};
    for (const auto& w : writes)
      o.writes.push_back(
          {.shape = w, .dtype = model::DType::kFloat32, .device = at::kCPU, .tensor = {}});
    SegmentContext context;
    context.local_rank = device;
    context.rotary = &rotary;
    const auto done = run_segment(s, phase, o, context);
    EXPECT_TRUE(done) << base::to_string(done.error());
    Tensors made;
    for (const Output& w : o.writes) made.push_back(w.tensor);
    return made;
  }
};

bool near(const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-4, 1e-5); }

class SplitNorm : public testing::TestWithParam<model::NormKind> {
 protected:
  static constexpr std::int64_t kFeatures = 12, kHalf = kFeatures / 2, kRows = kBatch * kTokens;
  const bool layer_ = GetParam() == model::NormKind::kLayerNorm;
  const std::size_t vectors_ = layer_ ? 2 : 1;
  const at::Tensor x_ = at::randn({kBatch, kTokens, kFeatures}), dy_ = at::randn(x_.sizes()),
                   residual_ = at::randn(x_.sizes());
  Tensors weights_{at::randn({kFeatures})};
  Runner run_;

  void SetUp() override {
    if (layer_) weights_.push_back(at::randn({kFeatures}));
  }
  [[nodiscard]] SegmentShape shape(SegmentKind kind, std::int64_t in) const {
    return {.kind = kind,
            .sequences = kBatch,
            .tokens = kTokens,
            .in = in,
            .out = kFeatures,
            .norm = GetParam(),
            .residual = true};
  }
  [[nodiscard]] Shapes made(std::int64_t features) const {
    Shapes all{{kBatch, kTokens, features}};
    all.resize(1 + vectors_, {kRows});
    return all;
  }
  void zero_gradients(std::int64_t features) {
    run_.gradients = Tensors(vectors_);
    for (at::Tensor& g : run_.gradients) g = at::zeros({features});
  }
  static at::Tensor half(const at::Tensor& t, int i) {
    return t.narrow(-1, i * kHalf, kHalf).contiguous();
  }
  [[nodiscard]] Tensors half_weights(int i) const {
    Tensors w;
    for (const at::Tensor& t : weights_) w.push_back(half(t, i));
    return w;
  }
};

TEST_P(SplitNorm, IsTheNormOfAllFeatures) {
  const SegmentShape norm = shape(SegmentKind::kNorm, kFeatures),
                     sums = shape(SegmentKind::kNormSums, kHalf),
                     apply = shape(SegmentKind::kNormApply, kHalf);
  const Tensors y = run_(norm, Phase::kF, 0, {x_}, made(kFeatures), weights_);
  Tensors reads{dy_, x_};
  reads.insert(reads.end(), y.begin() + 1, y.end());
  reads.push_back(residual_);
  zero_gradients(kFeatures);
  const at::Tensor dx =
      run_(norm, Phase::kBG, 0, reads, {{kBatch, kTokens, kFeatures}}, weights_)[0];
  const Tensors gradients = run_.gradients;

  const std::vector<std::int64_t> sum_shape{static_cast<std::int64_t>(vectors_), kRows};
  const at::Tensor all = run_(sums, Phase::kF, 0, {half(x_, 0)}, {sum_shape})[0] +
                         run_(sums, Phase::kF, 1, {half(x_, 1)}, {sum_shape})[0];
  at::Tensor d_all = at::zeros(sum_shape);
  std::array<Tensors, 2> half_reads;
  for (int i = 0; i < 2; ++i) {
    const Tensors part =
        run_(apply, Phase::kF, i, {half(x_, i), all}, made(kHalf), half_weights(i));
    EXPECT_TRUE(near(part[0], half(y[0], i)));
    Tensors& r = half_reads[as_index(i)];
    r = {half(dy_, i), half(x_, i)};
    r.insert(r.end(), part.begin() + 1, part.end());
    d_all += run_(sums, Phase::kB, i, r, {sum_shape}, {half_weights(i)[0]})[0];
  }
  for (int i = 0; i < 2; ++i) {
    Tensors& r = half_reads[as_index(i)];
    r.push_back(d_all);
    r.push_back(half(residual_, i));
    zero_gradients(kHalf);
    EXPECT_TRUE(near(run_(apply, Phase::kBG, i, r, {{kBatch, kTokens, kHalf}}, half_weights(i))[0],
                     half(dx, i)));
    for (std::size_t v = 0; v < vectors_; ++v)
      EXPECT_TRUE(near(run_.gradients[v], half(gradients[v], i)));
  }
}
INSTANTIATE_TEST_SUITE_P(Norms, SplitNorm,
                         testing::Values(model::NormKind::kLayerNorm, model::NormKind::kRmsNorm));

struct AttentionCase {
  bool rotary, causal;
};
class MaterialisedAttention : public testing::TestWithParam<AttentionCase> {};

// Queries on two devices by id bit 1, keys whole: each device does its half of the rows.
TEST_P(MaterialisedAttention, IsTheAttentionCoreOfTheDevicesQueries) {
  SegmentShape core{.kind = SegmentKind::kAttention, .sequences = kBatch, .tokens = kTokens};
  core.heads = kHeads;
  core.kv_heads = kKeyHeads;
  core.head_dim = kHeadDim;
  core.rotary = GetParam().rotary;
  core.causal = GetParam().causal;
  const std::int64_t n = kHeads * kHeadDim, k = kKeyHeads * kHeadDim;
  const at::Tensor qkv = at::randn({kBatch, kTokens, n + 2 * k}),
                   d_o = at::randn({kBatch, kTokens, n});
  Runner run;
  const Tensors o =
      run(core, Phase::kF, 0, {qkv}, {{kBatch, kTokens, n}, {kBatch, kHeads, kTokens}});
  const at::Tensor dqkv =
      run(core, Phase::kB, 0, {d_o, qkv, o[0], o[1]}, {{kBatch, kTokens, n + 2 * k}})[0];
  const auto part = [](const at::Tensor& t, std::int64_t first, std::int64_t width) {
    return t.narrow(-1, first, width).contiguous();
  };
  const auto rows = [](const at::Tensor& t, int i) {
    return t.narrow(1, i * kTokens / 2, kTokens / 2).contiguous();
  };
  const at::Tensor keys = part(qkv, n, k), values = part(qkv, n + k, k);
  at::Tensor dk = at::zeros(keys.sizes()), dv = at::zeros(values.sizes());
  SegmentShape half = core;
  half.tokens = kTokens / 2;
  half.kv_tokens = kTokens;
  half.token_bits = 0b10;
  const auto of = [&](SegmentKind kind) {
    SegmentShape s = half;
    s.kind = kind;
    s.rotary = core.rotary && kind == SegmentKind::kScores;
    return s;
  };
  const std::vector<std::int64_t> scores_shape{kBatch, kHeads, kTokens / 2, kTokens},
      queries_shape{kBatch, kTokens / 2, n};
  for (int i = 0; i < 2; ++i) {
    const int device = 2 * i + 1;
    const at::Tensor q = rows(part(qkv, 0, n), i), d = rows(d_o, i);
    const at::Tensor s =
        run(of(SegmentKind::kScores), Phase::kF, device, {q, keys}, {scores_shape})[0];
    const at::Tensor a = run(of(SegmentKind::kSoftmax), Phase::kF, device, {s}, {scores_shape})[0];
    EXPECT_TRUE(
        near(run(of(SegmentKind::kValues), Phase::kF, device, {a, values}, {queries_shape})[0],
             rows(o[0], i)));
    const at::Tensor da =
        run(of(SegmentKind::kValues), Phase::kB, device, {d, values}, {scores_shape})[0];
    dv += run(of(SegmentKind::kValues), Phase::kG, device, {d, a}, {{kBatch, kTokens, k}})[0];
    const at::Tensor ds =
        run(of(SegmentKind::kSoftmax), Phase::kB, device, {da, a}, {scores_shape})[0];
    EXPECT_TRUE(
        near(run(of(SegmentKind::kScores), Phase::kB, device, {ds, keys}, {queries_shape})[0],
             rows(part(dqkv, 0, n), i)));
    dk += run(of(SegmentKind::kScores), Phase::kG, device, {ds, q}, {{kBatch, kTokens, k}})[0];
  }
  EXPECT_TRUE(near(dk, part(dqkv, n, k)));
  EXPECT_TRUE(near(dv, part(dqkv, n + k, k)));
}
INSTANTIATE_TEST_SUITE_P(Masks, MaterialisedAttention,
                         testing::Values(AttentionCase{false, false}, AttentionCase{false, true},
                                         AttentionCase{true, true}));

TEST(PartitionedParameters, AreBlocksOfTheWhole) {
  const plan::Sequence p2x2{{.k = 1}};
  plan::Parameter matrix{.name = "w", .shape = {4, 6}, .local_shape = {4, 6}};
  plan::ParameterUnit whole, block;
  whole.parameters = {matrix};
  matrix.local_shape = {2, 3};
  matrix.shard_dim = 0;
  matrix.in_dim = 1;
  block.parameters = {matrix};
  block.partition = p2x2;
  std::vector<float> all(24);
  initial_parameters(whole, {.begin = 0, .end = 24}, 5, 4, all);
  for (int device = 0; device < 4; ++device) {
    // F starts with block (r + c, c) of [in, out].
    const int r = device / 2, c = device % 2, in = (r + c) % 2;
    std::vector<float> own(6);
    initial_parameters(block, {.begin = 0, .end = 6, .device = device}, 5, 4, own);
    for (int row = 0; row < 2; ++row)
      for (int column = 0; column < 3; ++column)
        EXPECT_EQ(own[as_index(row * 3 + column)],
                  all[as_index((2 * c + row) * 6 + 3 * in + column)]);
  }
}

}  // namespace
}  // namespace orrery::executor
