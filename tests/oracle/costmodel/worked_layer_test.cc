/// The worked layer of Galvatron (arXiv 2211.13878 section 5; Hetu-Galvatron cea12ff): Llama-2-7B
/// on 8 A100, pure data parallel, micro-batch 1. Published: forward 4.692 ms, backward 9.384 ms,
/// gradients 680.95 MiB of bus volume at 154.203 GB/s, overlap 1.12555; 14.657 ms with
/// synchronisation, 14.076 ms without.
#include <gtest/gtest.h>

#include "costmodel/closed_form/layer_costs.h"
#include "costmodel/profiles/profiles.h"

namespace orrery::costmodel {
namespace {

constexpr double kMillisecondPs = 1e9;
constexpr double kVolume = 680.95 * 1024 * 1024;

model::ModelSpec llama() { return *model::find_model("llama-2-7b"); }
model::Profile shipped() { return *find_profile("llama2-7b-a100-8gpu", llama()); }

CostModel cost() {
  auto made = CostModel::make(llama(), *topologies::catalog_topology("dgx-a100"), shipped(),
                              {model::Precision::kBFloat16, 2048});
  EXPECT_TRUE(made.has_value());
  return *std::move(made);
}

/// The tool does not look a batch up: it fits total milliseconds = slope * batch + intercept by
/// least squares.
double fitted_forward_ms(std::int64_t batch) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  const auto profile = shipped();
  for (const auto& p : profile.layers[0].points) {
    const auto b = static_cast<double>(p.batch);
    const double ms = b * p.layer_seconds_per_sample * 1e3;
    n += 1;
    x += b;
    y += ms;
    xx += b * b;
    xy += b * ms;
  }
  const double slope = (n * xy - x * y) / (n * xx - x * x);
  return slope * static_cast<double>(batch) + (y - slope * x) / n;
}

TEST(WorkedLayer, ForwardIsTheFitOfTheProfilesPoints) {
  EXPECT_NEAR(fitted_forward_ms(1), 4.692, 0.0006);
}

TEST(WorkedLayer, OverlapFormulaGivesThePublishedTimes) {
  const auto c = cost();
  const auto forward = static_cast<std::int64_t>(4.692 * kMillisecondPs);
  const auto gradients =
      c.collective(plan::Collective::kAllReduce, {.name = "data", .size = 8, .stride = 1},
                   static_cast<std::int64_t>(kVolume * 8 / 14), 0, 8);
  EXPECT_EQ(gradients.rate_cap, 154'203'000'000);
  // the tool knows no latency
  const std::int64_t sync = gradients.duration_ps() - gradients.latency_ps;
  EXPECT_NEAR(static_cast<double>(sync), kVolume / 154.203e9 * 1e12, 1e4);
  const auto total =
      forward + overlapped_ps(2 * forward, sync, c.overlap_slowdown_ppm(), c.overlaps());
  EXPECT_NEAR(static_cast<double>(total) / kMillisecondPs, 14.657, 0.001);
  EXPECT_NEAR(static_cast<double>(3 * forward) / kMillisecondPs, 14.076, 1e-6);
}

TEST(WorkedLayer, OurBlockTakesItsMeasuredTimeAndTwiceThatBackward) {
  const auto c = cost();
  for (const std::int64_t batch : {1, 4, 8}) {
    const plan::LayerContext context{.precision = model::Precision::kBFloat16,
                                     .sequence = 2048,
                                     .micro_batch_sequences = 8 * batch,
                                     .micro_batches = 8,
                                     .global_batch = 64 * batch};
    LayerCosts costs(c);
    const auto layer = costs.block({.tp = 1, .dp = 8}, context, 0, 8);
    const auto profile = shipped();
    const auto& point = profile.layers[0].points[static_cast<std::size_t>(batch - 1)];
    ASSERT_EQ(point.batch, batch);
    const double measured = static_cast<double>(batch) * point.layer_seconds_per_sample * 1e12;
    EXPECT_NEAR(static_cast<double>(layer.forward_ps), measured, 20);
    EXPECT_NEAR(static_cast<double>(layer.backward_ps), 2 * measured, 20);
    // The measured point and the tool's straight line agree within 7 % (worst at batch 1, where the
    // line has an intercept).
    EXPECT_NEAR(measured / kMillisecondPs, fitted_forward_ms(batch),
                0.07 * fitted_forward_ms(batch));
  }
}

TEST(WorkedLayer, SynchronisationCostsWhatTheOverlapFormulaSays) {
  const auto c = cost();
  const plan::LayerContext context{.precision = model::Precision::kBFloat16,
                                   .sequence = 2048,
                                   .micro_batch_sequences = 8,
                                   .micro_batches = 8,
                                   .global_batch = 64};
  LayerCosts costs(c);
  const auto layer = costs.block({.tp = 1, .dp = 8}, context, 0, 8);
  // Gradients are fp32 here: 4 bytes per parameter of a block.
  const auto gradients =
      c.collective(plan::Collective::kAllReduce, {.name = "data", .size = 8, .stride = 1},
                   4 * llama().block_parameters(), 0, 8);
  EXPECT_EQ(layer.backward_sync_ps, overlapped_ps(layer.backward_ps, gradients.duration_ps(),
                                                  c.overlap_slowdown_ppm(), true));
}

}  // namespace
}  // namespace orrery::costmodel
