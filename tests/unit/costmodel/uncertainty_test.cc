#include "costmodel/uncertainty/uncertainty.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "base/rng.h"
#include "costmodel/profiles/profiles.h"
#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

using model::Phase;
using model::SegmentKind;
using model::SegmentShape;
using model::Spread;

CostModel priced(std::optional<model::Profile> profile,
                 model::Precision precision = model::Precision::kBFloat16) {
  return CostModel::make(*model::find_model("llama-2-7b"), machines::cluster(2, 2),
                         std::move(profile), {precision, 2048})
      .value();
}
model::Profile named() {
  model::Profile p;
  p.name = "test";
  p.device = "T100-80GB";
  p.provenance.source = "test";
  return p;
}
SegmentShape product(std::int64_t out) {
  return {.kind = SegmentKind::kMlpIn,
          .dtype = model::DType::kBFloat16,
          .sequences = 1,
          .tokens = 2048,
          .in = 4096,
          .out = out};
}
SegmentShape norm() {
  return {.kind = SegmentKind::kNorm,
          .dtype = model::DType::kBFloat16,
          .sequences = 1,
          .tokens = 2048,
          .in = 4096,
          .out = 4096};
}

// Eight draws of one source: ±q(9/16), ±q(11/16), ±q(13/16), ±q(15/16), times w / q(0.9).
TEST(Draws, OneSourceTakesTheQuantilesOfItsNormal) {
  const auto draws = draw_errors({.products = 0.2}, 8);
  std::vector<double> logs;
  for (const PriceFactors& f : draws) {
    logs.push_back(std::log(f.products));
    EXPECT_EQ(f.streams, 1);
    EXPECT_EQ(f.fabric, 1);
  }
  std::ranges::sort(logs);
  for (std::size_t i = 0; i < 8; ++i) {
    const double share = (static_cast<double>(i) + 0.5) / 8;
    EXPECT_NEAR(logs[i], 0.2 / 1.2815515655446004 * base::normal_quantile(share), 1e-12);
  }
}

TEST(Draws, ComeInPairsOfOppositeErrors) {
  const auto draws = draw_errors({.operators = 0.1,
                                  .products = 0.2,
                                  .attention = 0.3,
                                  .streams = 0.1,
                                  .launches = 0.4,
                                  .in_hosts = 0.2,
                                  .fabric = 0.3,
                                  .step = 0.05});
  ASSERT_EQ(draws.size(), static_cast<std::size_t>(kDraws));
  std::set<double> orders;
  for (std::size_t k = 0; k < draws.size(); ++k) {
    const PriceFactors &one = draws[k], &other = draws[draws.size() - 1 - k];
    for (const auto field :
         {&PriceFactors::products, &PriceFactors::attention, &PriceFactors::streams,
          &PriceFactors::launches, &PriceFactors::in_hosts, &PriceFactors::fabric})
      EXPECT_NEAR(one.*field * (other.*field), 1, 1e-12);
    EXPECT_EQ(one.operators, -other.operators);
    EXPECT_NEAR(one.of_shape(product(4096), Phase::kF) * other.of_shape(product(4096), Phase::kF),
                1, 1e-12);
    orders.insert(std::log(one.products) / std::log(one.launches));
  }
  EXPECT_GT(orders.size(), draws.size() / 4) << "sources err independently";
}

TEST(Draws, DependOnTheSeedAlone) {
  const Spread spread{.products = 0.1, .launches = 0.3};
  EXPECT_EQ(draw_errors(spread), draw_errors(spread));
  EXPECT_NE(draw_errors(spread), draw_errors(spread, kDraws, 2));
}

TEST(Draws, TheStepsErrorMultipliesEveryPrice) {
  for (const PriceFactors& f : draw_errors({.step = 0.1}, 4)) {
    EXPECT_NE(f.products, 1);
    for (const double other : {f.attention, f.streams, f.launches, f.in_hosts, f.fabric})
      EXPECT_EQ(other, f.products);
  }
}

TEST(PriceFactors, ShapesOfProductsErrByThemselvesAndStreamsDoNot) {
  const PriceFactors f{.operators = 0.1, .seed = 7};
  EXPECT_NE(f.of_shape(product(4096), Phase::kF), f.of_shape(product(8192), Phase::kF));
  EXPECT_NE(f.of_shape(product(4096), Phase::kF), f.of_shape(product(4096), Phase::kB));
  EXPECT_EQ(f.of_shape(product(4096), Phase::kF), f.of_shape(product(4096), Phase::kF));
  EXPECT_EQ(f.of_shape(norm(), Phase::kF), 1);
}

TEST(DrawnPrices, FollowTheirKindOfWork) {
  const CostModel cost = priced(std::nullopt);
  const CostModel slow = cost.drawn({.products = 2, .streams = 3, .in_hosts = 4, .fabric = 5});
  const auto ratio = [&](const SegmentShape& s) {
    return static_cast<double>(slow.segment_ps(s, Phase::kF)) /
           static_cast<double>(cost.segment_ps(s, Phase::kF));
  };
  EXPECT_NEAR(ratio(product(4096)), 2, 1e-6);
  EXPECT_NEAR(ratio(norm()), 3, 1e-6);
  const auto reduce = [](const CostModel& c, const plan::Group& group) {
    return static_cast<double>(
        c.collective(plan::Collective::kAllReduce, group, 1 << 20, 0, 4).duration_ps());
  };
  EXPECT_NEAR(reduce(slow, {"data", 2, 1}) / reduce(cost, {"data", 2, 1}), 4, 1e-3);
  EXPECT_NEAR(reduce(slow, {"data", 2, 2}) / reduce(cost, {"data", 2, 2}), 5, 1e-3);
  EXPECT_NE(slow.fingerprint(), cost.fingerprint());
}

TEST(DrawnPrices, MeasuredTimesErrAsTheirKindDoes) {
  auto p = named();
  p.operators.push_back({.shape = product(4096),
                         .phase = Phase::kF,
                         .seconds_median = 1e-3,
                         .seconds_p10 = 1e-3,
                         .seconds_p90 = 1e-3,
                         .samples = 5});
  p.collectives.push_back({.op = model::Collective::kAllReduce,
                           .size = 2,
                           .bus_bandwidth = 50e9,
                           .latency_seconds = 1e-6});
  const CostModel slow = priced(p).drawn({.products = 1.5, .in_hosts = 2});
  EXPECT_EQ(slow.segment_ps(product(4096), Phase::kF), 1'500'000'000);
  // 2 steps of 1 us, and 1 MB at 50 GB/s.
  EXPECT_EQ(
      slow.collective(plan::Collective::kAllReduce, {"data", 2, 1}, 1'000'000, 0, 2).duration_ps(),
      2 * (2'000'000 + 20'000'000));
}

TEST(DrawnPrices, TheHostErrsAsLaunchesDo) {
  auto p = named();
  p.surfaces.emplace_back();
  p.framework = model::Framework{.kernel_seconds = 1e-6};
  const CostModel cost = priced(p),
                  late = priced(p).drawn({.products = 2, .streams = 2, .launches = 1.25});
  EXPECT_EQ(cost.host_ps(4), 4'000'000);
  EXPECT_EQ(late.host_ps(4), 5'000'000);
  const CostModel slow_host = priced(p).drawn({.launches = 1.25});
  EXPECT_EQ(slow_host.segment_ps(norm(), Phase::kF), cost.segment_ps(norm(), Phase::kF));
}

TEST(DrawnPrices, WithoutErrorsAreThePrices) {
  const CostModel cost = priced(std::nullopt), same = cost.drawn({});
  EXPECT_EQ(same.segment_ps(product(4096), Phase::kBG), cost.segment_ps(product(4096), Phase::kBG));
  EXPECT_EQ(
      same.collective(plan::Collective::kAllGather, {"data", 4, 1}, 12345, 0, 4).duration_ps(),
      cost.collective(plan::Collective::kAllGather, {"data", 4, 1}, 12345, 0, 4).duration_ps());
}

// Ten draws stand at 5, 15, ..., 95 %: 10 % is half way between the first two.
TEST(Bands, ReachFromTheTenthToTheNinetiethPercentile) {
  const std::vector<double> draws{0.90, 1.10, 0.94, 0.96, 0.98, 1.00, 1.02, 1.04, 0.92, 1.06};
  EXPECT_DOUBLE_EQ(band_of(draws).low, 0.91);
  EXPECT_DOUBLE_EQ(band_of(draws).high, 1.08);
  EXPECT_DOUBLE_EQ(band_of(std::vector<double>{0.5, 0.6}).high, 1.0)
      << "the prediction lies in its band";
}

TEST(Bands, APairIsComparedDrawByDraw) {
  const std::vector<double> one{1.0, 2.0, 3.0, 4.0}, other{1.1, 1.9, 3.0, 4.1};
  EXPECT_DOUBLE_EQ(share_faster({10, one}, {10, other}), 0.625);
  EXPECT_DOUBLE_EQ(share_faster({10, one}, {10, one}), 0.5);
  EXPECT_DOUBLE_EQ(share_faster({10, one}, {100, other}), 1);
  EXPECT_TRUE(within_error(0.1));
  EXPECT_FALSE(within_error(0.09));
}

plan::Plan any_plan(int ranks = 2) {
  plan::Plan plan;
  plan.stages = {{.runs = {{1, {.dp = ranks}}}}};
  plan.vocabulary = {.dp = ranks};
  return plan;
}

TEST(Uncertainty, GrowsWithWhatNoPublishedStepHad) {
  auto p = named();
  p.spread = Spread{.step = 0.03};
  p.held_ranks = 8;
  const auto beyond = [&](const plan::Plan& plan) {
    return uncertainty_of(priced(p), plan).beyond;
  };
  EXPECT_EQ(beyond(any_plan(8)), 0);
  EXPECT_DOUBLE_EQ(beyond(any_plan(32)), 0.04);  // twice as many, twice
  plan::Plan over_hosts = any_plan(32);
  over_hosts.stages[0].runs[0].strategy = {.tp = 16, .dp = 1};
  over_hosts.stages[0].runs[0].strategy.cp = 2;
  EXPECT_DOUBLE_EQ(beyond(over_hosts), std::sqrt(0.04 * 0.04 + 0.1 * 0.1 + 0.08 * 0.08));
  EXPECT_THAT(uncertainty_of(priced(p), over_hosts).source,
              testing::HasSubstr("none of more than 8 devices, tensor groups over hosts, context"));
  EXPECT_DOUBLE_EQ(uncertainty_of(priced(p, model::Precision::kFp8Current), any_plan(8)).beyond,
                   0.08);
  p.surfaces.emplace_back();  // of bf16
  EXPECT_EQ(beyond(any_plan(8)), 0);
  EXPECT_DOUBLE_EQ(uncertainty_of(priced(p, model::Precision::kFloat32), any_plan(8)).beyond, 0.15);
  p.surfaces.clear();
  p.held_ranks = 0;
  EXPECT_DOUBLE_EQ(beyond(any_plan(32)), 0.08);
  p.device.clear();  // of another device
  p.surfaces.emplace_back();
  EXPECT_DOUBLE_EQ(beyond(any_plan(32)), std::sqrt(0.08 * 0.08 + 0.33 * 0.33));
  p.spread.reset();  // what it has is not from steps
  EXPECT_EQ(beyond(over_hosts), 0);
}

// Blocks of Nemotron 3 Nano are a scan, a mixture or attention; the first has no experts.
TEST(Uncertainty, GrowsWithWhatAnyBlockHas) {
  auto p = named();
  p.spread = Spread{.step = 0.03};
  p.held_ranks = 8;
  const auto beyond = [&](std::string_view model) {
    const auto cost = CostModel::make(*model::find_model(model), machines::cluster(2, 2), p,
                                      {model::Precision::kBFloat16, 2048});
    return uncertainty_of(cost.value(), any_plan(8)).beyond;
  };
  EXPECT_DOUBLE_EQ(beyond("mixtral-8x7b"), 0.15);
  EXPECT_DOUBLE_EQ(beyond("mamba2-2.7b"), 0.15);
  EXPECT_DOUBLE_EQ(beyond("nemotron-3-nano-30b-a3b"), std::sqrt(2 * 0.15 * 0.15));
}

TEST(Uncertainty, WidthsAddInSquares) {
  const Band band =
      Uncertainty{.spread = {}, .source = {}, .beyond = 0.04}.widened({std::exp(-0.03), 1});
  EXPECT_DOUBLE_EQ(band.low, std::exp(-0.05));
  EXPECT_DOUBLE_EQ(band.high, std::exp(0.04));
}

TEST(Uncertainty, ComesFromWhatTheProfileHas) {
  const Uncertainty datasheet = uncertainty_of(priced(std::nullopt), any_plan());
  EXPECT_DOUBLE_EQ(datasheet.spread.products, 0.11);
  EXPECT_DOUBLE_EQ(datasheet.spread.in_hosts, 0.3);
  EXPECT_THAT(datasheet.source, testing::HasSubstr("not measured on this device"));

  auto p = named();
  p.surfaces.emplace_back();
  p.surfaces.front().residual = 0.06;
  EXPECT_DOUBLE_EQ(uncertainty_of(priced(p), any_plan()).spread.operators, 0.06);
  EXPECT_DOUBLE_EQ(uncertainty_of(priced(p), any_plan()).spread.products, 0);

  // Nine samples between 0.9 and 1.1 ms: 10 % each, and their median sqrt(pi / 2) / 3 of that.
  p.operators.push_back({.shape = product(4096),
                         .phase = Phase::kF,
                         .seconds_median = 1e-3,
                         .seconds_p10 = 0.9e-3,
                         .seconds_p90 = 1.1e-3,
                         .samples = 9});
  EXPECT_NEAR(uncertainty_of(priced(p), any_plan()).spread.operators,
              0.1 * std::sqrt(std::numbers::pi / 2) / 3, 1e-9);
  EXPECT_NEAR(uncertainty_of(priced(p), any_plan()).spread.step, 0.1, 1e-9);

  p.composition_residual = 0.024;
  EXPECT_DOUBLE_EQ(uncertainty_of(priced(p), any_plan()).spread.step, 0.024);
  EXPECT_THAT(uncertainty_of(priced(p), any_plan()).source, testing::HasSubstr("'test'"));

  p.spread = Spread{.products = 0.01, .step = 0.02};
  EXPECT_EQ(uncertainty_of(priced(p), any_plan()).spread, *p.spread);
}

TEST(Uncertainty, ShippedDevicesAddTheirOwnProductsToWhatStepsShowed) {
  const auto model = *model::find_model("llama-2-7b");
  for (const char* cluster : {"dgx-a100", "dgx-h100", "mi300x"}) {
    const auto found = device_profile(*topologies::catalog_topology(cluster), model);
    ASSERT_TRUE(found.has_value() && found->has_value()) << cluster;
    ASSERT_TRUE((*found)->spread.has_value()) << cluster;
    EXPECT_EQ((*found)->spread->operators, (*found)->surfaces.front().residual);
    EXPECT_GT((*found)->spread->launches, 0);
  }
}

}  // namespace
}  // namespace orrery::costmodel
