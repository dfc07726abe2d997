// The kernels for devices, run on threads of the CPU, against the segments' loops for the CPU: the
// same operands, fp32 to 1e-6 and bf16 to its rounding.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "executor/segments/segment_kernels.h"
#include "tests/support/device_on_cpu.h"
// its functions, with threads of the CPU for a device
#include "executor/device/device_columns_cuda.cu"
#include "executor/device/device_elements_cuda.cu"
#include "executor/device/device_heads_cuda.cu"
#include "executor/device/device_lookup_cuda.cu"
#include "executor/device/device_norms_cuda.cu"
#include "executor/device/device_rows_cuda.cu"

namespace orrery::executor {
namespace {

using kernels::numbers_of;
using model::DType;
using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

constexpr double kFloat = 1e-6, kBFloat16 = 1.0 / 128;

class DeviceKernels : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override { at::manual_seed(5); }
  [[nodiscard]] bool bf16() const { return GetParam() == DType::kBFloat16; }
  [[nodiscard]] at::Tensor random(at::IntArrayRef shape, double scale = 1) const {
    return (at::randn(shape) * scale).to(scalar_type(GetParam()));
  }
  [[nodiscard]] SegmentShape shape(SegmentKind kind, std::int64_t in, std::int64_t out) const {
    SegmentShape s;
    s.kind = kind;
    s.dtype = GetParam();
    s.sequences = 1;
    s.tokens = kRows;
    s.in = in;
    s.out = out;
    return s;
  }
  [[nodiscard]] Output declared(std::vector<std::int64_t> extents, DType type) const {
    return {.shape = std::move(extents), .dtype = type};
  }
  void expect_near(const at::Tensor& found, const at::Tensor& expected, double tolerance) const {
    const at::Tensor e = expected.to(at::kDouble).view({-1}), f = found.to(at::kDouble).view({-1});
    EXPECT_LE((e - f).abs().max().item<double>(), tolerance * e.abs().max().item<double>());
  }
  void updates(std::int64_t parameter);
  void rotations(std::int64_t dim);
  void packing(std::int64_t dim, bool turns);
  [[nodiscard]] double rounding() const { return bf16() ? kBFloat16 : kFloat; }

  static constexpr std::int64_t kRows = 3;
};

Operands operands(std::vector<at::Tensor> reads, std::vector<Output> writes,
                  std::vector<at::Tensor> updates = {}) {
  Operands o;
  o.reads = std::move(reads);
  o.writes = std::move(writes);
  o.updates = std::move(updates);
  return o;
}

void run(const SegmentShape& s, Phase phase, Operands& o, SegmentContext context = {}) {
  ASSERT_TRUE(run_segment(s, phase, o, context));
}

/// Room in which blocks meet; all counts are 0 again afterwards.
class Meeting {
 public:
  explicit Meeting(std::int64_t numbers)
      : partial_(at::full({numbers}, 9.0)),
        arrived_(at::zeros({device::Arrivals::kMost}, at::kInt)) {}
  ~Meeting() { EXPECT_EQ(arrived_.abs().sum().item<std::int64_t>(), 0); }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  [[nodiscard]] device::Arrivals arrivals() const {
    return {partial_.mutable_data_ptr<float>(),
            reinterpret_cast<unsigned*>(arrived_.mutable_data_ptr<int>())};
  }

 private:
  at::Tensor partial_, arrived_;
};

class DeviceRows : public DeviceKernels {
 protected:
  void loss(std::int64_t padded);
  void norms(std::int64_t features, model::NormKind kind);
  void sums_with_norms(std::int64_t features);
  void residuals(std::int64_t columns, std::int64_t many);
  void lookups(std::int64_t features);
  void activations(model::Activation activation, bool gated, std::int64_t columns);
};

TEST_P(DeviceRows, LossOfAShardWithPadding) {
  for (const std::int64_t padded : {304, 303}) loss(padded);
}

// The second of two shards: its last columns are padding.
void DeviceRows::loss(std::int64_t padded) {
  constexpr std::int64_t kVocab = 600;
  SegmentShape s = shape(SegmentKind::kLossMax, 4, padded);
  s.vocab = kVocab;
  SegmentContext context;
  context.vocabulary_shard = 1;
  context.loss_scale = 0.25;
  const at::Tensor x = random({1, kRows, padded}, 3);
  const at::Tensor targets = at::zeros({1, kRows}, at::kLong);
  targets.view({-1})[1] = padded;  // the first column; the others are in the first shard
  Operands max = operands({x}, {declared({kRows}, DType::kFloat32)});
  run(s, Phase::kF, max, context);
  const at::Tensor m = max.writes[0].tensor;
  s.kind = SegmentKind::kLossSum;
  Operands sum = operands({x, m, targets}, {declared({2, kRows}, DType::kFloat32)});
  run(s, Phase::kF, sum, context);
  const at::Tensor stat = sum.writes[0].tensor;
  s.kind = SegmentKind::kLoss;
  Operands gradient = operands({m, stat, targets}, {}, {x.clone()});
  run(s, Phase::kB, gradient, context);

  at::Tensor own_m = at::zeros({kRows}), own_stat = at::zeros({2, kRows}), own = x.clone();
  const device::Logits logits{numbers_of(own), kRows, kVocab - padded, padded, padded};
  const auto* ids = targets.const_data_ptr<std::int64_t>();
  device::loss_max(nullptr, logits, own_m.mutable_data_ptr<float>());
  device::loss_sum(nullptr, logits, own_m.const_data_ptr<float>(), ids,
                   own_stat.mutable_data_ptr<float>());
  device::loss_gradient(nullptr, logits, own_m.const_data_ptr<float>(),
                        own_stat.const_data_ptr<float>(), ids, 0.25F);
  EXPECT_TRUE(at::equal(own_m, m));
  expect_near(own_stat, stat, kFloat);
  expect_near(own, gradient.updates[0], rounding());
}

TEST_P(DeviceRows, Norms) {
  // the last two: several packs of a thread, in one type each
  for (const std::int64_t features : {136, 139, 1031, 4104})
    for (const auto kind : {model::NormKind::kLayerNorm, model::NormKind::kRmsNorm})
      norms(features, kind);
}

// More rows than blocks: a block has several.
void DeviceRows::norms(std::int64_t features, model::NormKind kind) {
  constexpr std::int64_t kMany = 9;
  const bool layer = kind == model::NormKind::kLayerNorm;
  SegmentShape s = shape(SegmentKind::kNorm, features, features);
  s.tokens = kMany;
  s.norm = kind;
  s.residual = true;
  const at::Tensor x = random({1, kMany, features}), dy = random({1, kMany, features}),
                   residual = random({1, kMany, features});
  std::vector<at::Tensor> weights{random({features})};
  if (layer) weights.push_back(random({features}));
  Operands f = operands({x}, {declared({1, kMany, features}, GetParam())});
  for (int i = 0; i < (layer ? 2 : 1); ++i) f.writes.push_back(declared({kMany}, DType::kFloat32));
  f.weights = weights;
  run(s, Phase::kF, f);
  Operands b = operands({dy, x}, {declared({1, kMany, features}, GetParam())});
  for (std::size_t i = 1; i < f.writes.size(); ++i) b.reads.push_back(f.writes[i].tensor);
  b.reads.push_back(residual);
  b.weights = weights;
  for (std::size_t i = 0; i < weights.size(); ++i) b.gradients.push_back(at::full({features}, 2.0));
  run(s, Phase::kBG, b);

  at::Tensor mean = at::zeros({kMany}), rstd = at::zeros({kMany});
  at::Tensor y = at::zeros_like(x), dx = at::zeros_like(x);
  at::Tensor gain = at::full({features}, 2.0), bias = at::full({features}, 2.0);
  const device::NormRows rows{.x = numbers_of(x),
                              .gain = numbers_of(weights[0]),
                              .bias = layer ? numbers_of(weights[1]) : device::Numbers{},
                              .mean = layer ? mean.mutable_data_ptr<float>() : nullptr,
                              .rstd = rstd.mutable_data_ptr<float>(),
                              .rows = kMany,
                              .features = features};
  device::norm(nullptr, rows, numbers_of(y), s.epsilon);
  at::Tensor behind = at::full({features}, 2.0);
  const device::NormGradients of_norm{.gain = gain.mutable_data_ptr<float>(),
                                      .bias = layer ? bias.mutable_data_ptr<float>() : nullptr},
      with_behind{of_norm.gain, of_norm.bias, behind.mutable_data_ptr<float>()};
  const auto backward = [&](const at::Tensor& to, const device::NormGradients& gradients) {
    Meeting meeting(device::norm_partials(rows, gradients));
    device::norm_backward(nullptr, rows, numbers_of(dy), numbers_of(residual), numbers_of(to),
                          gradients, meeting.arrivals());
  };
  backward(dx, of_norm);
  at::Tensor alone = at::zeros_like(x), again = at::zeros_like(x);
  backward(alone, {});
  EXPECT_TRUE(at::equal(alone, dx));
  expect_near(y, f.writes[0].tensor, rounding());
  expect_near(rstd, f.writes.back().tensor, kFloat);
  expect_near(dx, b.writes[0].tensor, rounding());
  expect_near(gain, b.gradients[0], kFloat);
  if (layer) expect_near(bias, b.gradients[1], kFloat);
  const at::Tensor once = gain.clone();
  gain.fill_(2.0);
  backward(again, with_behind);
  EXPECT_TRUE(at::equal(again, dx));
  EXPECT_TRUE(at::equal(gain, once));
  expect_near(behind, dx.to(at::kDouble).view({-1, features}).sum(0) + 2.0, kFloat);
}

TEST_P(DeviceRows, NormsOfSums) {
  for (const std::int64_t features : {136, 139, 4104}) sums_with_norms(features);
}

// What the two operations make apart.
void DeviceRows::sums_with_norms(std::int64_t features) {
  const at::Tensor x = random({kRows, features}), p = random({kRows, features}),
                   bias = random({features}), gain = random({features});
  for (const bool has_bias : {false, true}) {
    const at::Tensor zero = at::zeros_like(bias);
    at::Tensor sum = at::zeros_like(x), y = at::zeros_like(x), rstd = at::zeros({kRows});
    at::Tensor sum_apart = at::zeros_like(x), y_apart = at::zeros_like(x),
               rstd_apart = at::zeros({kRows});
    const auto rows = [&](const at::Tensor& of, const at::Tensor& to) {
      return device::NormRows{.x = numbers_of(of),
                              .gain = numbers_of(gain),
                              .bias = {},
                              .mean = nullptr,
                              .rstd = to.mutable_data_ptr<float>(),
                              .rows = kRows,
                              .features = features};
    };
    device::add_with_bias(nullptr, numbers_of(x), numbers_of(p), numbers_of(has_bias ? bias : zero),
                          numbers_of(sum_apart), kRows, features);
    device::norm(nullptr, rows(sum_apart, rstd_apart), numbers_of(y_apart), 1e-5);
    device::norm_of_sum(
        nullptr, rows(sum, rstd),
        {numbers_of(x), numbers_of(p), has_bias ? numbers_of(bias) : device::Numbers{}},
        numbers_of(y), 1e-5);
    EXPECT_TRUE(at::equal(sum, sum_apart));
    EXPECT_TRUE(at::equal(y, y_apart));
    EXPECT_TRUE(at::equal(rstd, rstd_apart));
  }
}

TEST_P(DeviceRows, BiasGradientsAndResiduals) {
  for (const std::int64_t columns : {72, 70})
    residuals(columns, 2100);                                 // no multiples of a block's
  if (GetParam() == DType::kBFloat16) residuals(4104, 1100);  // wide blocks
}

// `many` rows: more than the threads ask for at once.
void DeviceRows::residuals(std::int64_t columns, std::int64_t many) {
  const at::Tensor d = random({many, columns}), bias = random({columns});
  at::Tensor sums = at::full({columns}, 3.0);
  device::add_column_sums(nullptr, numbers_of(d), many, columns, sums.mutable_data_ptr<float>());
  expect_near(sums, d.to(at::kDouble).sum(0) + 3.0, kFloat);
  const at::Tensor x = random({kRows, columns}), p = random({kRows, columns});
  at::Tensor y = at::zeros_like(x);
  device::add_with_bias(nullptr, numbers_of(x), numbers_of(p), numbers_of(bias), numbers_of(y),
                        kRows, columns);
  expect_near(y, x.to(at::kDouble) + p.to(at::kDouble) + bias.to(at::kDouble), rounding());
}

TEST_P(DeviceRows, LookedUpRowsAndTheirGradients) {
  for (const std::int64_t features : {72, 70}) lookups(features);
}

// The second of two shards, of more tokens than a block looks at in one go, most of them alike.
void DeviceRows::lookups(std::int64_t features) {
  constexpr std::int64_t kIds = 12, kTokens = 600;
  SegmentShape s = shape(SegmentKind::kEmbedding, features, kIds);
  s.tokens = kTokens;
  s.vocab = 2 * kIds;
  SegmentContext context;
  context.vocabulary_shard = 1;
  const at::Tensor ids = at::randint(2 * kIds, {1, kTokens}, at::kLong);
  ids.slice(1, 0, kTokens, 2).fill_(kIds + 3);
  const at::Tensor table = random({kIds, features}), d = random({1, kTokens, features});
  Operands f = operands({ids}, {declared({1, kTokens, features}, GetParam())});
  f.weights = {table};
  run(s, Phase::kF, f, context);
  Operands g = operands({d, ids}, {});
  g.gradients = {at::full({kIds, features}, 2.0)};
  run(s, Phase::kBG, g, context);

  at::Tensor y = at::zeros_like(d), gradient = at::full({kIds, features}, 2.0);
  const device::Lookup lookup{ids.const_data_ptr<std::int64_t>(), kTokens, kIds, kIds, features};
  device::look_up(nullptr, lookup, numbers_of(table), numbers_of(y));
  device::add_looked_up(nullptr, lookup, numbers_of(d), gradient.mutable_data_ptr<float>());
  EXPECT_TRUE(at::equal(y, f.writes[0].tensor));
  expect_near(gradient, g.gradients[0], kFloat);
}

TEST_P(DeviceRows, Activations) {
  for (const auto activation : {model::Activation::kSilu, model::Activation::kGeluTanh})
    for (const bool gated : {false, true})
      for (const std::int64_t columns : {72, 70}) activations(activation, gated, columns);
}

void DeviceRows::activations(model::Activation activation, bool gated, std::int64_t columns) {
  const std::int64_t stride = gated ? 2 * columns : columns;
  SegmentShape s = shape(SegmentKind::kActivation, stride, columns);
  s.activation = activation;
  s.gated = gated;
  const at::Tensor u = random({1, kRows, stride}, 3), d = random({1, kRows, columns});
  Operands f = operands({u}, {declared({1, kRows, columns}, GetParam())});
  run(s, Phase::kF, f);
  Operands b = operands({d, u}, {declared({1, kRows, stride}, GetParam())});
  run(s, Phase::kB, b);

  at::Tensor g = at::zeros_like(d), du = at::zeros_like(u);
  const auto gate = [&](const at::Tensor& both) { return numbers_of(both.narrow(-1, 0, columns)); };
  const auto up = [&](const at::Tensor& both) {
    return gated ? numbers_of(both.narrow(-1, columns, columns)) : device::Numbers{};
  };
  const device::Activated x{.gate = gate(u),
                            .up = up(u),
                            .rows = kRows,
                            .columns = columns,
                            .stride = stride,
                            .gelu = activation == model::Activation::kGeluTanh};
  device::activation(nullptr, x, numbers_of(g));
  device::activation_backward(nullptr, x, numbers_of(d), gate(du), up(du));
  expect_near(g, f.writes[0].tensor, rounding());
  expect_near(du, b.writes[0].tensor, rounding());
  at::Tensor again = at::zeros_like(u), sums = at::full({stride}, 3.0);
  const Meeting meeting(device::activation_partials(x));
  device::activation_backward_with_sums(nullptr, x, numbers_of(d), gate(again), up(again),
                                        sums.mutable_data_ptr<float>(), meeting.arrivals());
  EXPECT_TRUE(at::equal(again, du));
  expect_near(sums, du.to(at::kDouble).view({-1, stride}).sum(0) + 3.0, kFloat);
}

TEST_P(DeviceKernels, AdamWOverAUnitOfSeveralParameters) {
  for (const std::int64_t parameter : {300, 301}) updates(parameter);
}

// Two units in a launch: one of them of several blocks, the other no multiple of a pack.
void DeviceKernels::updates(std::int64_t parameter) {
  plan::ParameterUnit units[2];
  for (int i = 0; i < 2; ++i) {
    for (const bool decays : {true, false, true}) {
      plan::Parameter p;
      p.offset = units[i].elements;
      p.shape = p.local_shape = {parameter * (i == 0 ? 100 : 1)};
      p.decay = decays;
      units[i].parameters.push_back(p);
      units[i].elements += p.local_shape[0];
    }
    units[i].padded = units[i].elements;
  }
  SegmentContext context;
  context.optimizer.learning_rate = 0.1;
  const AdamW& a = context.optimizer;
  const device::AdamWStep step{.decay = static_cast<float>(1 - a.learning_rate * a.weight_decay),
                               .beta1 = static_cast<float>(1 - a.beta1),
                               .beta2 = static_cast<float>(1 - a.beta2),
                               .step = static_cast<float>(a.learning_rate / (1 - a.beta1)),
                               .root_correction = static_cast<float>(1 / std::sqrt(1 - a.beta2)),
                               .epsilon = static_cast<float>(a.epsilon)};
  std::vector<Operands> expected;
  std::vector<at::Tensor> own, rounded;
  device::AdamWUnit of_device[2];
  for (int i = 0; i < 2; ++i) {
    const std::int64_t all = units[i].elements;
    SegmentShape s;
    s.kind = SegmentKind::kAdamW;
    s.elements = all;
    context.unit = &units[i];
    const at::Tensor g = at::randn({all});
    const std::vector<at::Tensor> pmv{at::randn({all}), at::randn({all}), at::rand({all})};
    for (const at::Tensor& t : pmv) own.push_back(t.clone());
    rounded.push_back(at::zeros({all}, at::kBFloat16));
    expected.push_back(operands({g}, {}, pmv));
    run(s, Phase::kF, expected.back(), context);
    const auto number = [&](int k) { return own[as_index(3 * i + k)].mutable_data_ptr<float>(); };
    const std::int64_t each = all / 3;
    of_device[i] = {
        .p = number(0),
        .g = g.const_data_ptr<float>(),
        .m = number(1),
        .v = number(2),
        .rounded = bf16() ? rounded.back().mutable_data_ptr() : nullptr,
        .elements = all,
        .ranges = {.end = {each, 2 * each, all}, .decays = {true, false, true}, .count = 3}};
  }
  device::adamw(nullptr, of_device, 2, step);
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t k = 0; k < 3; ++k)
      EXPECT_TRUE(at::equal(own[3 * i + k], expected[i].updates[k]));
    if (bf16()) {
      EXPECT_TRUE(at::equal(rounded[i], own[3 * i].to(at::kBFloat16)));
    }
  }
}

TEST_P(DeviceKernels, RotationOfPackedHeadsIntoHeadsByStride) {
  for (const std::int64_t dim : {32, 6}) rotations(dim);
}

void DeviceKernels::rotations(std::int64_t dim) {
  constexpr std::int64_t kHeads = 3;
  const std::int64_t half = dim / 2;
  const at::Tensor packed = random({2, kRows, 5 * dim}), angle = at::randn({kRows, half});
  const at::Tensor x = packed.narrow(-1, dim, kHeads * dim).view({2, kRows, kHeads, dim});
  const at::Tensor cos = angle.cos(), sin = angle.sin();
  at::Tensor y = at::zeros_like(random({2, kHeads, kRows, dim})).transpose(1, 2);
  const auto heads = [](const at::Tensor& t) {
    return device::Heads{numbers_of(t), t.stride(0), t.stride(1), t.stride(2)};
  };
  device::rotate(nullptr, heads(y), heads(x), cos.const_data_ptr<float>(),
                 sin.const_data_ptr<float>(), 2, kRows, kHeads, dim, -1);
  const at::Tensor wide = x.to(at::kDouble), x1 = wide.narrow(-1, 0, half),
                   x2 = wide.narrow(-1, half, half);
  const at::Tensor c = cos.to(at::kDouble).view({1, kRows, 1, half}),
                   back = sin.to(at::kDouble).view({1, kRows, 1, half});
  expect_near(y.narrow(-1, 0, half).contiguous(), (x1 * c + x2 * back).contiguous(), rounding());
  expect_near(y.narrow(-1, half, half).contiguous(), (x2 * c - x1 * back).contiguous(), rounding());
}

TEST_P(DeviceKernels, HeadsByStrideArePackedAndTurnedBack) {
  for (const std::int64_t dim : {32, 6})
    for (const bool turns : {false, true}) packing(dim, turns);
}

// More tokens than blocks of them.
void DeviceKernels::packing(std::int64_t dim, bool turns) {
  constexpr std::int64_t kHeads = 5, kKvHeads = 2, kTokens = 7, kBatch = 3;
  const std::int64_t half = dim / 2, columns = (kHeads + 2 * kKvHeads) * dim;
  const at::Tensor angle = at::randn({kTokens, half}), cos = angle.cos(), sin = angle.sin();
  const auto heads = [&](std::int64_t count) {
    return random({kBatch, count, kTokens, dim}).transpose(1, 2);
  };
  const auto place = [](const at::Tensor& t) {
    return device::Heads{numbers_of(t), t.stride(0), t.stride(1), t.stride(2)};
  };
  const at::Tensor q = heads(kHeads), k = heads(kKvHeads), v = heads(kKvHeads);
  at::Tensor expected = at::zeros({kBatch, kTokens, columns}, at::kDouble);
  std::int64_t first = 0;
  for (const at::Tensor& from : {q, k, v}) {
    const at::Tensor x = from.to(at::kDouble), x1 = x.narrow(-1, 0, half),
                     x2 = x.narrow(-1, half, half);
    const at::Tensor c = cos.to(at::kDouble).view({1, kTokens, 1, half}),
                     s = sin.to(at::kDouble).view({1, kTokens, 1, half});
    const at::Tensor turned =
        turns && !from.is_same(v) ? at::cat({x1 * c + x2 * s, x2 * c - x1 * s}, -1) : x;
    expected.narrow(-1, first, from.size(2) * dim)
        .copy_(turned.reshape({kBatch, kTokens, from.size(2) * dim}));
    first += from.size(2) * dim;
  }
  device::HeadsToPack from{.q = place(q),
                           .k = place(k),
                           .v = place(v),
                           .batch = kBatch,
                           .tokens = kTokens,
                           .heads = kHeads,
                           .kv_heads = kKvHeads,
                           .head_dim = dim};
  if (turns) {
    from.cos = cos.const_data_ptr<float>();
    from.sin = sin.const_data_ptr<float>();
  }
  at::Tensor to = at::zeros({kBatch, kTokens, columns}, q.options()), again = at::zeros_like(to),
             sums = at::full({columns}, 3.0);
  device::pack_heads(nullptr, from, numbers_of(to), nullptr, {});
  const Meeting meeting(device::pack_partials(from, bf16()));
  device::pack_heads(nullptr, from, numbers_of(again), sums.mutable_data_ptr<float>(),
                     meeting.arrivals());
  expect_near(to, expected, rounding());
  EXPECT_TRUE(at::equal(again, to));
  expect_near(sums, to.to(at::kDouble).view({-1, columns}).sum(0) + 3.0, kFloat);
}

INSTANTIATE_TEST_SUITE_P(Types, DeviceKernels,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16));
INSTANTIATE_TEST_SUITE_P(Types, DeviceRows, ::testing::Values(DType::kFloat32, DType::kBFloat16));

}  // namespace
}  // namespace orrery::executor
