#include "costmodel/compute/compute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "plan/lowering/lower.h"
#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

using model::Phase;
using model::SegmentKind;

model::ModelSpec spec(const char* name) {
  auto found = model::find_model(name);
  EXPECT_TRUE(found.has_value());
  return *found;
}

/// T x 1000 by 1000 x 1000 in bf16: 2e6 T FLOP, R = T * 25 ns + 1 us.
model::SegmentShape product(std::int64_t tokens) {
  model::SegmentShape s;
  s.kind = SegmentKind::kMlpIn;
  s.dtype = model::DType::kBFloat16;
  s.sequences = 1;
  s.tokens = tokens;
  s.in = s.out = 1000;
  return s;
}

model::OperatorPoint point(const model::SegmentShape& shape, Phase phase, double seconds) {
  return {.shape = shape,
          .phase = phase,
          .seconds_median = seconds,
          .seconds_p10 = seconds,
          .seconds_p90 = seconds,
          .samples = 1};
}

ComputePrices prices(const std::optional<model::Profile>& profile) {
  auto made = ComputePrices::make(spec("llama-tiny"), machines::cluster(1), profile,
                                  model::Precision::kBFloat16);
  EXPECT_TRUE(made.has_value()) << (made ? "" : base::to_string(made.error()));
  return *std::move(made);
}

TEST(Roofline, ProductIsBoundByArithmetic) {
  // 2 GFLOP at 80 TFLOP/s, 1 us launch
  EXPECT_NEAR(prices({}).seconds(product(1000), Phase::kF), 26e-6, 1e-12);
}

TEST(Roofline, AdamWIsBoundByMemory) {
  model::SegmentShape s;
  s.kind = SegmentKind::kAdamW;
  s.dtype = model::DType::kBFloat16;
  s.elements = 1'000'000;
  const double bytes = model::work(s, Phase::kF).bytes.raw();
  EXPECT_GT(bytes, 25e6);
  EXPECT_NEAR(prices({}).seconds(s, Phase::kF), bytes / 0.8e12 + 1e-6, 1e-12);
}

TEST(Roofline, PhaseWithoutWorkIsFree) {
  model::SegmentShape s;
  s.kind = SegmentKind::kLoadTokens;
  s.sequences = s.tokens = 1;
  EXPECT_EQ(prices({}).seconds(s, Phase::kB), 0.0);
}

TEST(MeasuredOperators, ExactHitIsTheMeasuredMedianTimesComposition) {
  model::Profile p;
  p.operators = {point(product(1000), Phase::kF, 52e-6)};
  EXPECT_DOUBLE_EQ(prices(p).seconds(product(1000), Phase::kF), 52e-6);
  p.composition_factor = 1.5;
  p.launch_seconds = 2e-6;
  EXPECT_DOUBLE_EQ(prices(p).seconds(product(1000), Phase::kF), 80e-6);
}

// R: 26, 51, 101 us at 1000, 2000, 4000 tokens, half way in log tokens. Measured 20 us + R: 1.7692
// R and 1.1980 R; r = 3.8846, w = (r - sqrt(r)) / (r - 1) = 0.6634.
TEST(MeasuredOperators, BetweenTwoPointsAConstantAndARateAreMet) {
  model::Profile p;
  p.operators = {point(product(1000), Phase::kF, 46e-6), point(product(4000), Phase::kF, 121e-6)};
  const double t = prices(p).seconds(product(2000), Phase::kF);
  EXPECT_NEAR(t, 51e-6 * (0.3365935 * 46 / 26 + 0.6634065 * 121 / 101), 1e-11);
  EXPECT_NEAR(t, 71e-6, 0.2e-6);  // R is not quite a power of the tokens
}

TEST(MeasuredOperators, BeyondThePointsTheNearestScalesByRoofline) {
  model::Profile p;
  p.operators = {point(product(1000), Phase::kF, 52e-6), point(product(2000), Phase::kF, 102e-6)};
  EXPECT_NEAR(prices(p).seconds(product(4000), Phase::kF), 202e-6, 1e-12);
}

// A sum of tensors as large as the product's output takes 30 us: a copy 20, two of them where a
// piece makes both gradients.
TEST(MeasuredOperators, APieceOfAProductIsCopiedIntoTheWhole) {
  model::SegmentShape sum = product(1000), piece = product(1000);
  sum.kind = SegmentKind::kResidual;
  model::Profile p;
  p.operators = {point(product(1000), Phase::kF, 52e-6), point(product(1000), Phase::kBG, 100e-6),
                 point(sum, Phase::kF, 30e-6)};
  piece.pieces = 2;
  EXPECT_NEAR(prices(p).seconds(piece, Phase::kF), 72e-6, 1e-12);
  EXPECT_NEAR(prices(p).seconds(piece, Phase::kBG), 140e-6, 1e-12);
  p.operators.pop_back();
  EXPECT_NEAR(prices(p).seconds(piece, Phase::kF), 52e-6, 1e-12);
}

TEST(MeasuredOperators, BothPhasesAddUpWhenMeasuredApart) {
  model::Profile p;
  p.operators = {point(product(1000), Phase::kB, 50e-6), point(product(1000), Phase::kG, 70e-6)};
  EXPECT_NEAR(prices(p).seconds(product(1000), Phase::kBG), 120e-6, 1e-12);
}

TEST(MeasuredOperators, AMissingPhaseTakesTheRooflineRatioOfAnother) {
  model::Profile p;
  p.operators = {point(product(1000), Phase::kF, 52e-6)};
  const auto c = prices(p);
  const double ratio = c.roofline().seconds(product(1000), Phase::kB) /
                       c.roofline().seconds(product(1000), Phase::kF);
  EXPECT_NEAR(c.seconds(product(1000), Phase::kB), 52e-6 * ratio, 1e-12);
}

TEST(MeasuredOperators, ProfileOfAnotherPrecisionIsRefused) {
  model::Profile p;
  auto shape = product(1000);
  shape.dtype = model::DType::kFloat32;
  p.operators = {point(shape, Phase::kF, 52e-6)};
  const auto made =
      ComputePrices::make(spec("llama-tiny"), machines::cluster(1), p, model::Precision::kBFloat16);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().front().code, base::ErrorCode::kInconsistent);
  EXPECT_NE(made.error().front().hint.find("--precision"), std::string::npos);
}

// A product in one wave of 256 x 128: 0.8 of fp32's peak, and the prologue's time of bf16's.
TEST(OtherType, ProductsTakeTheDatasheetsRateAndTheProloguesTime) {
  model::Profile p;
  p.surfaces.push_back({.product = {.units = 1,
                                    .efficiency = 0.5,
                                    .launch_seconds = 2e-6,
                                    .prologue_features = 100,
                                    .memory_efficiency = 1e6}});
  p.surfaces[0].power.joules_per_flop = 0;
  model::SegmentShape s = product(256);
  s.in = 1000;
  s.out = 128;
  const auto made =
      ComputePrices::make(spec("llama-tiny"), machines::cluster(1), p, model::Precision::kFloat32);
  ASSERT_TRUE(made.has_value()) << base::to_string(made.error());
  const Roofline& device = made->roofline();
  const double fp32 = device.peak_fp32.raw(), bf16 = device.peak_bf16.raw(), tile = 2.0 * 256 * 128;
  ASSERT_NE(fp32, bf16);
  s.dtype = model::DType::kFloat32;
  EXPECT_NEAR(made->seconds(s, Phase::kF),
              2e-6 + tile * 1000 / (0.8 * fp32) + tile * 100 / (0.5 * bf16), 1e-12);
  EXPECT_EQ(made->source(s, Phase::kF), PriceSource::kRoofline);
  EXPECT_FALSE(made->fitted());
  EXPECT_TRUE(prices(p).fitted());
}

// ---- layer times ----

model::Profile layer_profile(const model::ModelSpec& m) {
  model::Profile p;
  p.layers = {{.model = m.name,
               .sequence = 64,
               .hidden = m.hidden,
               .precision = model::Precision::kBFloat16,
               .points = {{1, 2e-3, 3e-3}, {4, 1.5e-3, 2e-3}}}};
  return p;
}

struct Sum {
  double forward = 0, backward = 0;
};
Sum sum_of(const ComputePrices& c, const plan::LayerTemplates& t) {
  Sum sum;
  for (const auto id : {t.forward, t.backward}) {
    for (const auto& op : t.program.templates[id].ops) {
      if (op.kind != plan::OpKind::kCompute) continue;
      (op.phase == Phase::kF ? sum.forward : sum.backward) +=
          c.seconds(t.program.segments[op.segment], op.phase);
    }
  }
  return sum;
}

plan::LayerContext context(std::int64_t batch) {
  return {.precision = model::Precision::kBFloat16,
          .sequence = 64,
          .micro_batch_sequences = batch,
          .micro_batches = 1,
          .global_batch = batch};
}

TEST(Slowest, TheGreatestOfManyNormalsIsThatOfDraws) {
  EXPECT_EQ(expected_greatest(1), 0);
  constexpr int kDraws = 4'000;
  std::uint64_t index = 0;
  for (const auto& [n, error] : {std::pair{2, 0.06}, {8, 0.02}, {64, 0.01}, {512, 0.01}}) {
    double sum = 0;
    for (int draw = 0; draw < kDraws; ++draw) {
      double greatest = base::normal(7, index++);
      for (int i = 1; i < n; ++i) greatest = std::max(greatest, base::normal(7, index++));
      sum += greatest;
    }
    EXPECT_NEAR(expected_greatest(n) / (sum / kDraws), 1, error) << n;
  }
}

TEST(Slowest, OfMoreDevicesEveryOperationTakesLonger) {
  const auto seconds = [](int devices, double deviation) {
    model::Profile p;
    p.operators = {point(product(1000), Phase::kF, 50e-6)};
    p.device_deviation = deviation;
    return ComputePrices::make(spec("llama-tiny"), machines::cluster(devices), p,
                               model::Precision::kBFloat16)
        .value()
        .seconds(product(1000), Phase::kF);
  };
  EXPECT_EQ(seconds(1, 0.02), 50e-6);
  EXPECT_EQ(seconds(16, 0), 50e-6);
  EXPECT_DOUBLE_EQ(seconds(16, 0.02), 50e-6 * (1 + 0.02 * expected_greatest(16)));
}

TEST(LayerTimes, SegmentsOfABlockAddUpToTheMeasurement) {
  for (const char* name : {"llama-tiny", "gpt2-tiny"}) {
    const auto m = spec(name);
    const auto made =
        ComputePrices::make(m, machines::cluster(1), layer_profile(m), model::Precision::kBFloat16);
    ASSERT_TRUE(made.has_value());
    const auto one = sum_of(*made, plan::lower_block(m, {}, context(1)));
    EXPECT_NEAR(one.forward, 2e-3, 1e-12) << name;
    EXPECT_NEAR(one.backward, 4e-3, 1e-12) << name;
    EXPECT_NEAR(sum_of(*made, plan::lower_block(m, {}, context(4))).forward, 6e-3, 1e-12) << name;
  }
}

TEST(LayerTimes, EmbeddingAndHeadAddUpToTheRest) {
  const auto m = spec("llama-tiny");
  const auto made =
      ComputePrices::make(m, machines::cluster(1), layer_profile(m), model::Precision::kBFloat16);
  ASSERT_TRUE(made.has_value());
  const auto e = sum_of(*made, plan::lower_embedding(m, {}, context(1))),
             h = sum_of(*made, plan::lower_head(m, {}, context(1)));
  EXPECT_NEAR(e.forward + h.forward, 3e-3, 1e-12);
  EXPECT_NEAR(e.backward + h.backward, 6e-3, 1e-12);
}

TEST(LayerTimes, TensorShardsOfALargeProductShrinkWithTheirWork) {
  const auto m = spec("llama-tiny");
  const auto made =
      ComputePrices::make(m, machines::cluster(1), layer_profile(m), model::Precision::kBFloat16);
  ASSERT_TRUE(made.has_value());
  auto half = product(4000);
  half.out = 500;
  const double launch = 1e-6, whole = 101e-6;
  EXPECT_NEAR(made->seconds(half, Phase::kF) / made->seconds(product(4000), Phase::kF),
              (50e-6 + launch) / whole, 1e-9);
}

TEST(LayerTimes, OfAnUnknownModelOfAnotherWidthAreRefused) {
  const auto m = spec("llama-tiny");
  auto p = layer_profile(m);
  p.layers[0].model = "my-model";
  p.layers[0].hidden = m.hidden + 1;
  const auto made = ComputePrices::make(m, machines::cluster(1), p, model::Precision::kBFloat16);
  ASSERT_FALSE(made.has_value());
  EXPECT_NE(made.error().front().message.find("my-model"), std::string::npos);
}

}  // namespace
}  // namespace orrery::costmodel
