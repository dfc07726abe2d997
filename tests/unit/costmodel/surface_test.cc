#include "costmodel/compute/surface.h"

#include <gtest/gtest.h>

#include <cmath>

namespace orrery::costmodel {
namespace {

using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

/// 10 units, 100 TFLOP/s of which half is reached, 1 TB/s, launch 1 us, prologue 24 features.
model::ComputeSurface surface() {
  model::ComputeSurface s;
  s.product = {.units = 10,
               .efficiency = 0.5,
               .launch_seconds = 1e-6,
               .prologue_features = 24,
               .half_tile = 0.8,
               .quantisation = 1,
               .split_traffic = 1,
               .memory_efficiency = 1,
               .throttle = 0,
               .correction = {}};
  s.attention = {.efficiency = 0.5,
                 .launch_seconds = 2e-6,
                 .seconds_per_token = 1e-9,
                 .memory_efficiency = 0.5,
                 .key_weight = 1,
                 .backward_efficiency = 0.8};
  s.stream = {.efficiency = 0.5, .norm_backward = 0.5};
  return s;
}

SurfacePrices prices(const model::ComputeSurface& s = surface(),
                     const std::optional<model::Framework>& framework = {}, double watts = 0) {
  return {
      s, framework, {base::FlopsPerSecond(100e12), base::BytesPerSecond(1e12), base::Watts(watts)}};
}

SegmentShape shape(SegmentKind kind) {
  SegmentShape s;
  s.kind = kind;
  s.dtype = model::DType::kBFloat16;
  s.sequences = 1;
  return s;
}

SegmentShape attention(std::int64_t tokens) {
  SegmentShape s = shape(SegmentKind::kAttention);
  s.tokens = tokens;
  s.heads = s.kv_heads = 4;
  s.head_dim = 64;
  return s;
}

// The same surface at twice the peak: 0.9 of its efficiency, and copies in time of their own.
TEST(Surface, QuantisedProductsRunAtTheirFormatsPeak) {
  const DeviceRates rates{.peak = base::FlopsPerSecond(100e12),
                          .memory_bandwidth = base::BytesPerSecond(1e15),
                          .peak_fp8 = base::FlopsPerSecond(200e12)};
  SegmentShape s = shape(SegmentKind::kQkv);
  s.tokens = s.in = s.out = 4096;
  const SurfacePrices unmeasured(surface(), {}, rates);
  const double launch = 1e-6, bf16 = unmeasured.seconds(s, Phase::kF) - launch;
  s.format = model::Format::kFp8Delayed;
  EXPECT_NEAR(unmeasured.seconds(s, Phase::kF) - launch, bf16 / 2 / 0.9, 1e-3 * bf16);
  model::ComputeSurface measured = surface();
  measured.formats.push_back({.formats = {s.format}, .peak = 200e12, .product = measured.product});
  const SurfacePrices own(measured, {}, rates);
  EXPECT_NEAR(own.seconds(s, Phase::kF) - launch, bf16 / 2, 1e-3 * bf16);
  s.quantises_input = true;  // (2 + 1) bytes of 4096² numbers at half of 1 PB/s, and a launch
  EXPECT_NEAR(own.seconds(s, Phase::kF) - 2 * launch, bf16 / 2 + 3 * 4096.0 * 4096 / 0.5e15,
              1e-3 * bf16);
}

// 64 rows of 512 numbers, 28 bytes a number forward and 40 backward at half of 1 TB/s, a launch
// each.
TEST(Surface, BiasesOfExpertsWeightedByTheGateAreAStream) {
  SegmentShape s = shape(SegmentKind::kExpertOut);
  s.tokens = 64;
  s.in = 256;
  s.out = 512;
  s.experts = 4;
  const model::Framework split{.expert_bias_bytes = 28, .expert_bias_gradient_bytes = 40};
  const auto more = [&](Phase phase) {
    return prices(surface(), split).seconds(s, phase) - prices().seconds(s, phase);
  };
  EXPECT_EQ(more(Phase::kF), 0);  // an expert without a bias
  s.bias = true;
  EXPECT_NEAR(more(Phase::kF), 28 * 64.0 * 512 / 0.5e12 + 1e-6, 1e-12);
  EXPECT_EQ(more(Phase::kB), 0);  // the input's gradient does not see it
  EXPECT_NEAR(more(Phase::kBG), 40 * 64.0 * 512 / 0.5e12 + 1e-6, 1e-12);
  s.kind = SegmentKind::kExpertIn;  // in the product's epilogue
  EXPECT_EQ(more(Phase::kF), 0);
}

// 64 rows of 512 numbers, 16 bytes a number forward and 30 backward at half of 1 TB/s.
TEST(Surface, ClampsInFrontOfAnActivationAreMoreOfItsStream) {
  SegmentShape s = shape(SegmentKind::kActivation);
  s.tokens = 64;
  s.in = 1024;
  s.out = 512;
  s.gated = true;
  s.activation = model::Activation::kClampedSwiglu;
  const model::Framework apart{.clamp_bytes = 16, .clamp_gradient_bytes = 30};
  const auto more = [&](Phase phase) {
    return prices(surface(), apart).seconds(s, phase) - prices().seconds(s, phase);
  };
  EXPECT_NEAR(more(Phase::kF), 16 * 64.0 * 512 / 0.5e12, 1e-12);
  EXPECT_NEAR(more(Phase::kB), 30 * 64.0 * 512 / 0.5e12, 1e-12);
  s.activation = model::Activation::kSilu;
  EXPECT_EQ(more(Phase::kF), 0);
}

TEST(Surface, APieceTakesItsShareOfTheWhole) {
  SegmentShape s = shape(SegmentKind::kQkv);
  s.tokens = s.in = s.out = 2560;
  const double whole = prices().seconds(s, Phase::kBG);
  s.tokens /= 4;
  s.pieces = 4;
  EXPECT_DOUBLE_EQ(4 * prices().seconds(s, Phase::kBG), whole);
}

// 2560 x 128 is ten tiles of 256 x 128, one wave: 2 * 32768 * 10 units * (1000 + 24) / 50 TFLOP/s =
// 13.42 us, and 1 us of launch. Smaller tiles are slower.
TEST(ProductSurface, OneWaveOfWholeTilesTakesItsProductsAndPrologue) {
  const double tiles = 2.0 * 32768 * 10 * 1024 / 50e12;
  EXPECT_NEAR(prices().product_seconds(2560, 128, 1000, 1, 0), 1e-6 + tiles, 1e-15);
}

// One tile more: eleven tiles on ten units are two waves; 128 x 128 tiles, 21 in three waves of
// half the work at 0.8 of the rate, take 3 / 2 / 0.8 = 1.875.
TEST(ProductSurface, TheLastWaveIsPaidInFullAndTheBestTileIsTaken) {
  const double wave = 2.0 * 32768 * 10 * 1024 / 50e12;
  EXPECT_NEAR(prices().product_seconds(2561, 128, 1000, 1, 0), 1e-6 + 1.875 * wave, 1e-12);
  model::ComputeSurface smooth = surface();
  smooth.product.quantisation = 0;
  EXPECT_NEAR(prices(smooth).product_seconds(2561, 128, 1000, 1, 0), 1e-6 + 1.1 * wave, 1e-12);
}

/// Draws 100 W idle and 10 pJ a FLOP, which goes with the square of the clock.
model::ComputeSurface hungry() {
  model::ComputeSurface s = surface();
  s.power = {.idle_watts = 100, .limit_watts = 0, .joules_per_flop = 10e-12, .exponent = 2};
  return s;
}

// At the clocks of the measurement the product of one wave runs at W / t FLOP/s and draws 10 pJ
// times that: where the limit leaves a quarter of it, clocks are half.
TEST(SustainedClocks, FallUntilThePowerFits) {
  const double t = prices().product_seconds(2560, 128, 1000, 1, 0);
  const double watts = 10e-12 * 2 * 2560 * 128 * 1000 / t;
  const auto at = [](double limit) {
    return prices(hungry(), {}, limit).product_seconds(2560, 128, 1000, 1, 0);
  };
  EXPECT_NEAR(at(100 + watts / 4), 2 * t, 1e-12);
  EXPECT_DOUBLE_EQ(at(100 + watts), t);
  EXPECT_DOUBLE_EQ(at(0), t);  // no limit is stated
}

TEST(SustainedClocks, AHigherLimitNeverSlowsAndNoneIsTheFastest) {
  SegmentShape core = attention(4096);
  double before = prices(hungry(), {}, 101).seconds(core, Phase::kBG);
  for (const double limit : {110, 150, 200, 400, 800}) {
    const double now = prices(hungry(), {}, limit).seconds(core, Phase::kBG);
    EXPECT_LE(now, before) << limit;
    before = now;
  }
  EXPECT_DOUBLE_EQ(before, prices(hungry()).seconds(core, Phase::kBG));
  EXPECT_GT(prices(hungry(), {}, 110).seconds(core, Phase::kBG), before);
}

// [1, 1000, 256] of bf16: 512 kB in and out, at half of 1 TB/s.
TEST(EagerKernels, PassThroughMemoryOftenerThanOneFusedKernel) {
  SegmentShape norm = shape(SegmentKind::kNorm);
  norm.tokens = 1000;
  norm.in = norm.out = 256;
  norm.norm = model::NormKind::kRmsNorm;
  const model::Framework eager{.name = "eager", .norm_passes = 9, .rotary_passes = 3};
  const double launch = surface().product.launch_seconds;
  EXPECT_NEAR(prices(surface(), eager).seconds(norm, Phase::kF) - launch,
              9 * (prices().seconds(norm, Phase::kF) - launch), 1e-12);
  // q and k of 4 heads of 64: 2 * 2 B * 1000 * 512 a pass
  SegmentShape core = attention(1000);
  const double plain = prices().seconds(core, Phase::kF);
  core.rotary = true;
  EXPECT_NEAR(prices(surface(), eager).seconds(core, Phase::kF),
              plain + launch + 3 * 2 * 2.0 * 1000 * 512 / 0.5e12, 1e-12);
}

TEST(ProductSurface, DeepProductsOfFewTilesAreSplit) {
  model::ComputeSurface s = surface();
  s.product.half_tile = 0.01;
  s.product.prologue_features = 0;
  const double whole = 2.0 * 32768 * 10 * 80'000 / 50e12;  // one tile, nine units idle
  const double eight = whole / 8 + 8.0 * 8 * 256 * 128 / 1e12;
  EXPECT_NEAR(prices(s).product_seconds(256, 128, 80'000, 1, 0), 1e-6 + eight, 1e-12);
}

TEST(ProductSurface, TrafficBindsThinProducts) {
  EXPECT_NEAR(prices().product_seconds(1, 1, 1, 1, 1e9), 1e-6 + 1e-3, 1e-8);
}

TEST(ProductSurface, CorrectionIsLinearBetweenKnotsInLogarithmsAndConstantBeyond) {
  model::ComputeSurface s = surface();
  s.product.correction = {.m = {100, 10000},
                          .n = {100, 10000},
                          .k = {100, 10000},
                          .ln = {0, 0, 0, 0, 0.4, 0.4, 0.4, 0.4}};
  const double plain = prices().product_seconds(1000, 512, 512, 1, 0);
  EXPECT_NEAR(prices(s).product_seconds(1000, 512, 512, 1, 0), plain * std::exp(0.2), 1e-15);
  EXPECT_NEAR(prices(s).product_seconds(50, 512, 512, 1, 0),
              prices().product_seconds(50, 512, 512, 1, 0), 1e-15);
  EXPECT_NEAR(prices(s).product_seconds(20000, 512, 512, 1, 0),
              prices().product_seconds(20000, 512, 512, 1, 0) * std::exp(0.4), 1e-12);
}

TEST(SurfacePrices, BothGradientsOfAProductAreTwoProducts) {
  SegmentShape s = shape(SegmentKind::kMlpIn);
  s.tokens = 2560;
  s.in = 1000;
  s.out = 128;
  const double b = prices().seconds(s, Phase::kB), g = prices().seconds(s, Phase::kG);
  EXPECT_GT(b, 0);
  EXPECT_NE(b, g);
  EXPECT_DOUBLE_EQ(prices().seconds(s, Phase::kBG), b + g);
}

// 4 heads of 64, 1000 tokens: launch 2 us, 1 us serial, 2.048 MB at 0.5 TB/s, half of 1.024 GFLOP
// at 50 TFLOP/s.
TEST(SurfacePrices, FlashAttentionIsTheSumOfItsParts) {
  EXPECT_NEAR(prices().seconds(attention(1000), Phase::kF),
              2e-6 + 1e-6 + 2 * 2.048e6 / 1e12 + 0.512e9 / 50e12, 1e-12);
}

// FlashAttention-2 at 25 of 100 TFLOP/s where 50 were measured; 2.5 times the products backward.
TEST(SurfacePrices, FlashAttention2IsAKernelOfItsOwnWhereTheDeviceSaysSo) {
  const model::Framework f{.name = "torch", .attention = model::AttentionKernel::kFlash2};
  const SegmentShape s = attention(1000);
  model::ComputeSurface hopper = surface();
  EXPECT_DOUBLE_EQ(prices(hopper, f).seconds(s, Phase::kF), prices().seconds(s, Phase::kF));
  hopper.attention.flash2_efficiency = 0.25;
  EXPECT_DOUBLE_EQ(prices(hopper).seconds(s, Phase::kF), prices().seconds(s, Phase::kF));
  EXPECT_NEAR(prices(hopper, f).seconds(s, Phase::kF) - prices().seconds(s, Phase::kF),
              0.512e9 / 25e12 - 0.512e9 / 50e12, 1e-12);
  EXPECT_NEAR(prices(hopper, f).seconds(s, Phase::kB) - prices().seconds(s, Phase::kB),
              2.5 * (0.512e9 / 25e12 - 0.512e9 / 40e12), 1e-12);
}

// Heads of 64 at half of the efficiency of 128; in the logarithm 90.5 lies in the middle.
TEST(SurfacePrices, SmallHeadsTakeTheirOwnShareOfTheEfficiency) {
  model::ComputeSurface small = surface();
  small.attention.head_sizes = {64, 128};
  small.attention.head_factors = {0.5, 1};
  SegmentShape s = attention(1000);
  EXPECT_NEAR(prices(small).seconds(s, Phase::kF) - prices().seconds(s, Phase::kF), 0.512e9 / 50e12,
              1e-12);
  s.head_dim = 90;
  const double products = 2 * 4 * 1000.0 * 1000 * 90;
  EXPECT_NEAR(prices(small).seconds(s, Phase::kF) - prices().seconds(s, Phase::kF),
              products / 50e12 / 3, 0.02 * products / 50e12);
  s.head_dim = 256;  // constant beyond
  EXPECT_DOUBLE_EQ(prices(small).seconds(s, Phase::kF), prices().seconds(s, Phase::kF));
}

// A window costs its edges, whatever its width; one as wide as the sequence is none.
TEST(SurfacePrices, WindowsCostTheirEdges) {
  model::ComputeSurface edged = surface();
  edged.attention.window_seconds = 1e-10;
  for (const std::int64_t reach : {16, 128, 999, 1000, 2000}) {
    SegmentShape s = attention(1000);
    s.reach = reach;
    const double edges = reach < 1000 ? 1e-10 * 4 * 1000 : 0;
    EXPECT_NEAR(prices(edged).seconds(s, Phase::kF) - prices().seconds(s, Phase::kF), edges, 1e-15);
    EXPECT_NEAR(prices(edged).seconds(s, Phase::kB) - prices().seconds(s, Phase::kB),
                2.5 * edges / surface().attention.backward_efficiency, 1e-15);
  }
}

// 128 heads of 192 numbers and values of 128 over a latent of 512; 64 index heads of 128, 2,048
// keys.
SegmentShape indexed(std::int64_t tokens, std::int64_t keys) {
  SegmentShape s = shape(SegmentKind::kLatentAttention);
  s.tokens = tokens;
  s.heads = s.kv_heads = 128;
  s.head_dim = 192;
  s.value_dim = 128;
  s.rope_dim = 64;
  s.in = 512;
  s.index_heads = 64;
  s.index_dim = 128;
  s.top_k = keys;
  return s;
}

// Index scores are half a square of 64 x 128 at 50 TFLOP/s, three times that backward. Few chosen
// keys in a long sequence, at 2 x 544 numbers, take their share: at 65,536 tokens all keys 1,342 ms
// of products, chosen ones less than a quarter of it.
TEST(SurfacePrices, AnIndexerCostsItsScoresAndSavesKeysOfLongSequences) {
  const auto seconds = [](SegmentShape s, Phase phase, bool index) {
    if (!index) s.index_heads = 0;
    return prices().seconds(s, phase);
  };
  for (const std::int64_t tokens : {4096, 65536})
    for (const Phase phase : {Phase::kF, Phase::kB}) {
      const double square = static_cast<double>(tokens) * static_cast<double>(tokens),
                   scores = (phase == Phase::kF ? 1 : 3) * 64 * 128 * square / 50e12;
      const SegmentShape every = indexed(tokens, tokens), few = indexed(tokens, 2048);
      EXPECT_NEAR(seconds(every, phase, true) - seconds(every, phase, false), scores,
                  0.06 * scores);  // and their traffic
      const double core = seconds(few, phase, true) - scores, all = seconds(few, phase, false);
      if (tokens == 4096)
        EXPECT_NEAR(core, all, 0.06 * all);  // every key behind the mask
      else
        EXPECT_LT(core, all / 3);
      EXPECT_GT(core, all / 8);
    }
}

TEST(SurfacePrices, AttentionWithoutAMaskCostsTwiceTheProducts) {
  SegmentShape s = attention(1000);
  const double causal = prices().seconds(s, Phase::kF);
  s.causal = false;
  EXPECT_NEAR(prices().seconds(s, Phase::kF) - causal, 0.512e9 / 50e12, 1e-12);
}

TEST(SurfacePrices, ExplicitAttentionPaysForItsScoresInMemory) {
  model::Framework f{.name = "explicit", .attention = model::AttentionKernel::kExplicit};
  const double plain = prices(surface(), f).seconds(attention(1000), Phase::kF);
  EXPECT_GT(plain, prices().seconds(attention(1000), Phase::kF));
  f.dropout = true;  // 2.5 passes over 8 MB of scores at half of 1 TB/s, and a launch
  EXPECT_NEAR(prices(surface(), f).seconds(attention(1000), Phase::kF) - plain,
              2.5 * 8e6 / 0.5e12 + 1e-6, 1e-12);
}

// fp32: twice the bytes, no fused softmax: 4 and 5 passes for 1.5 and 2, dropout 2.25 for 2.5.
TEST(SurfacePrices, ExplicitAttentionInFp32HasNoFusedSoftmax) {
  model::Framework f{.name = "explicit", .attention = model::AttentionKernel::kExplicit};
  SegmentShape half = attention(1000), full = half;
  half.causal = full.causal = true;
  full.dtype = model::DType::kFloat32;
  // all but softmax moves twice as much in fp32; products take no time
  model::ComputeSurface s = surface();
  s.product.launch_seconds = 0;
  s.product.efficiency = 1e6;
  const double scores = 8e6 / 0.5e12;
  for (const auto& [phase, fused, apart] :
       {std::tuple(Phase::kF, 1.5, 4.0), std::tuple(Phase::kBG, 2.0, 5.0)}) {
    f.dropout = false;
    const double in_half = prices(s, f).seconds(half, phase),
                 in_full = prices(s, f).seconds(full, phase);
    EXPECT_NEAR(in_full - 2 * in_half, 2 * (apart - fused) * scores, 1e-9);
    f.dropout = true;
    EXPECT_NEAR(prices(s, f).seconds(full, phase) - in_full, 2 * 2.25 * scores, 1e-9);
  }
}

TEST(SurfacePrices, CompositionSlowsProductsAndAttentionButNotStreams) {
  const DeviceRates rates{base::FlopsPerSecond(100e12), base::BytesPerSecond(1e12)};
  const SurfacePrices alone(surface(), std::nullopt, rates),
      step(surface(), std::nullopt, rates, 1.25);
  SegmentShape product = shape(SegmentKind::kMlpIn), norm = shape(SegmentKind::kNorm);
  product.tokens = 2560;
  product.in = 1000;
  product.out = 128;
  norm.tokens = 1000;
  norm.in = 64;
  EXPECT_DOUBLE_EQ(step.seconds(product, Phase::kBG), 1.25 * alone.seconds(product, Phase::kBG));
  EXPECT_DOUBLE_EQ(step.seconds(attention(1000), Phase::kBG),
                   1.25 * alone.seconds(attention(1000), Phase::kBG));
  EXPECT_DOUBLE_EQ(step.seconds(norm, Phase::kBG), alone.seconds(norm, Phase::kBG));
}

TEST(SurfacePrices, PhaseWithoutWorkIsFree) {
  SegmentShape s = shape(SegmentKind::kLoadTokens);
  s.tokens = 1;
  EXPECT_EQ(prices().seconds(s, Phase::kB), 0.0);
}

}  // namespace
}  // namespace orrery::costmodel
