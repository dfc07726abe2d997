/// Plans under errors of prices: what holds of any spread.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "costmodel/closed_form/closed_form.h"
#include "costmodel/profiles/profiles.h"
#include "costmodel/uncertainty/uncertainty.h"

namespace orrery::costmodel {
namespace {

struct Scene {
  CostModel cost;
  plan::Plan plan, other;
};
const Scene& scene() {
  static const Scene kScene = [] {
    const auto model = model::find_model("gpt2-tiny").value();
    const auto topology = topologies::catalog_topology("dgx-a100").value();
    const auto made = [&](const plan::UniformOptions& o) {
      return plan::uniform_plan(model, "dgx-a100", 1, o).value();
    };
    auto profile = device_profile(topology, model).value();
    return Scene{
        CostModel::make(model, topology, std::move(profile),
                        {.precision = model::Precision::kBFloat16, .sequence = 64})
            .value(),
        made({.tp = 2, .pp = 2, .dp = 2, .micro_batch = 1, .global_batch = 8, .sequence = 64}),
        made({.tp = 1, .dp = 8, .zero = 1, .micro_batch = 1, .global_batch = 8, .sequence = 64})};
  }();
  return kScene;
}

model::Spread any_spread() {
  model::Spread spread;
  for (const auto& [name, field] : model::kSpreadFields)
    spread.*field = *rc::gen::inRange(0, 40) / 100.0;
  return spread;
}

RC_GTEST_PROP(DrawsProperty, ABandHoldsThePrediction, ()) {
  const auto band = band_of(scene().cost, scene().plan, any_spread()).value();
  RC_ASSERT(band.low <= 1.0);
  RC_ASSERT(band.high >= 1.0);
  RC_ASSERT(band.low > 0.0);
}

TEST(DrawsProperty, NoSpreadHasNoWidth) {
  const auto band = band_of(scene().cost, scene().plan, {}).value();
  EXPECT_EQ(band.low, 1.0);
  EXPECT_EQ(band.high, 1.0);
}

// One source alone: more of it, and no operation of this step is shorter.
TEST(DrawsProperty, AWiderSpreadNeverNarrows) {
  for (const auto& [name, field] : model::kSpreadFields) {
    model::Spread spread;
    Band before;
    for (const double w : {0.05, 0.1, 0.3}) {
      spread.*field = w;
      const auto band = band_of(scene().cost, scene().plan, spread).value();
      EXPECT_LE(band.low, before.low) << name << " " << w;
      EXPECT_GE(band.high, before.high) << name << " " << w;
      before = band;
    }
  }
}

// The error of the whole step is the band itself: 10th and 90th percentile of exp(w q / q(0.9)).
TEST(DrawsProperty, TheErrorOfAllPricesIsTheBand) {
  for (const double w : {0.01, 0.05, 0.13, 0.29}) {
    const auto band = band_of(scene().cost, scene().plan, {.step = w}).value();
    EXPECT_NEAR(std::log(band.high), w, 0.03 * w);
    EXPECT_NEAR(std::log(band.low), -w, 0.03 * w);
  }
}

RC_GTEST_PROP(DrawsProperty, APlanIsAsFastAsItself, ()) {
  const auto errors = draw_errors(any_spread(), 4, *rc::gen::inRange<std::uint64_t>(0, 1000));
  const plan::Plan* const plans[] = {&scene().plan, &scene().other, &scene().plan};
  const auto draws = drawn_steps(scene().cost, plans, errors).value();
  RC_ASSERT(draws[0] == draws[2]);
  RC_ASSERT(share_faster({100, draws[0]}, {100, draws[2]}) == 0.5);
  RC_ASSERT(share_faster({100, draws[0]}, {101, draws[1]}) +
                share_faster({101, draws[1]}, {100, draws[0]}) ==
            1.0);
  RC_ASSERT(drawn_steps(scene().cost, plans, errors).value() == draws);
}

/// Two plans on two hosts of a cluster.
Scene across_hosts(const char* cluster, const plan::UniformOptions& o) {
  const auto model = model::find_model("gpt2-tiny").value();
  const auto topology = topologies::catalog_topology(cluster, 2).value();
  const auto made = [&](plan::UniformOptions options, int zero) {
    options.zero = zero;
    return plan::uniform_plan(model, cluster, 2, options).value();
  };
  auto profile = device_profile(topology, model).value();
  return Scene{CostModel::make(model, topology, std::move(profile),
                               {.precision = model::Precision::kBFloat16, .sequence = 64})
                   .value(),
               made(o, 1), made(o, 3)};
}

// Layers, links and memory are found once for all draws; every draw priced by itself, on a machine
// of its own rates, says the same to the picosecond.
RC_GTEST_PROP(DrawsProperty, PricedTogetherAreThoseOfModelsMadeAnew, ()) {
  static const plan::UniformOptions kOptions{
      .tp = 2, .pp = 2, .dp = 4, .micro_batch = 1, .global_batch = 8, .sequence = 64};
  static const std::vector<Scene> kScenes = {across_hosts("dgx-a100", kOptions),
                                             across_hosts("h100-fat-tree", kOptions), scene()};
  const Scene& s = kScenes[*rc::gen::inRange<std::size_t>(0, kScenes.size())];
  const auto errors = draw_errors(any_spread(), 2, *rc::gen::inRange<std::uint64_t>(0, 1000));
  const plan::Plan* const plans[] = {&s.plan, &s.other};
  const auto draws = drawn_steps(s.cost, plans, errors).value();
  for (std::size_t k = 0; k < errors.size(); ++k) {
    const CostModel drawn = s.cost.drawn(errors[k]);
    for (std::size_t p = 0; p < 2; ++p) {
      const auto step = plan_cost(drawn, *plans[p]).value().step_ps,
                 centre = plan_cost(s.cost, *plans[p]).value().step_ps;
      RC_ASSERT(draws[p][k] == static_cast<double>(step) / static_cast<double>(centre));
    }
  }
}

// What two plans have in common cancels: with an error of all prices alone, none is overtaken that
// is 2 % behind.
TEST(DrawsProperty, AnErrorThatPlansShareDoesNotChangeTheirOrder) {
  const plan::Plan* const plans[] = {&scene().plan, &scene().other};
  const auto draws = drawn_steps(scene().cost, plans, draw_errors({.step = 0.3})).value();
  EXPECT_EQ(share_faster({102, draws[0]}, {100, draws[1]}), 0);
  EXPECT_EQ(share_faster({100, draws[0]}, {102, draws[1]}), 1);
}

}  // namespace
}  // namespace orrery::costmodel
