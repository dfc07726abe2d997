// Days, money and energy of a run, against published runs and worked by hand.
#include "sim/run/run_cost.h"

#include <gtest/gtest.h>

namespace orrery::sim {
namespace {

using base::Seconds;
using base::Watts;

constexpr double kDay = 86'400;

/// A run of so many hours of devices, on so many.
RunRequest of_hours(double device_hours, double devices) {
  RunRequest r;
  r.tokens = 1e12;
  r.tokens_per_s = 1e12 / (device_hours / devices * 3600);
  r.devices = devices;
  return r;
}

RunCost cost_of(const RunRequest& request) {
  const auto cost = run_cost(request);
  EXPECT_TRUE(cost.has_value());
  return cost.value_or(RunCost());
}

// arXiv 2412.19437: 180,000 hours of devices per 10^12 tokens, "3.7 days on our cluster".
TEST(RunCost, DeepSeekV3TakesDaysAndMoneyAsPublished) {
  const RunCost tera = cost_of(of_hours(180e3, 2048));
  EXPECT_NEAR(tera.wall.raw() / kDay, 3.66, 0.005);
  EXPECT_NEAR(tera.device_hours, 180e3, 1e-6);
  EXPECT_FALSE(tera.dollars || tera.mwh || tera.kg_co2);
  EXPECT_EQ(tera.goodput, 1);

  RunRequest all = of_hours(2.788e6, 2048);
  all.dollars_per_device_hour = 2;
  EXPECT_NEAR(*cost_of(all).dollars, 5.576e6, 1e-3);
}

// arXiv 2104.10350: 330 W a device with its share of the host, PUE 1.1, 552 t of CO2 at 429 g/kWh.
TEST(RunCost, Gpt3TakesEnergyAsPublished) {
  RunRequest r = of_hours(10'000 * 14.8 * 24, 10'000);
  r.power = {Watts(10'000 * 329.4), Watts(0)};
  r.pue = 1.1;
  r.carbon_g_per_kwh = 429;
  const RunCost cost = cost_of(r);
  EXPECT_NEAR(cost.wall.raw() / kDay, 14.8, 1e-9);
  EXPECT_NEAR(*cost.mwh, 1287, 0.2);
  EXPECT_NEAR(*cost.kg_co2, 552e3, 200);
  EXPECT_NEAR(*cost.mwh * 1e6 / cost.device_hours, 362.3, 0.1);  // W a device, with PUE
}

// arXiv 2211.02001.
TEST(RunCost, BloomTakesEnergyAsPublished) {
  RunRequest r = of_hours(1'082'990, 384);
  r.power = {Watts(384 * 400), Watts(0)};
  const RunCost cost = cost_of(r);
  EXPECT_NEAR(*cost.mwh, 433.2, 0.01);
  EXPECT_NEAR(cost.wall.raw() / kDay, 117.5, 0.05);
}

// An hour of work in ten intervals of 360 s, checkpoints of 40 s, no failures to speak of: 400 s
// more, at the watts of waiting. 3,600 s * 1,000 W + 400 s * 100 W = 3.64 MJ.
TEST(RunCost, CheckpointsDrawWhatWaitingDraws) {
  RunRequest r;
  r.tokens = 3600;
  r.tokens_per_s = 1;
  r.devices = 8;
  r.failures = FailureModel{Seconds(1e15), Seconds(40), Seconds(100)};
  r.interval = Seconds(360);
  r.power = {Watts(1000), Watts(100)};
  const RunCost cost = cost_of(r);
  EXPECT_NEAR(cost.wall.raw(), 4000, 1e-6);
  EXPECT_NEAR(cost.goodput, 0.9, 1e-9);
  EXPECT_NEAR(*cost.mwh * 3.6e9, 3.64e6, 1);
  EXPECT_NEAR(cost.device_hours, 8 * 4000 / 3600.0, 1e-9);
}

TEST(RunCost, FailuresLengthenARunByTheInverseOfGoodput) {
  RunRequest r = of_hours(1e6, 1024);
  r.failures = FailureModel{Seconds(10'000), Seconds(50), Seconds(100)};
  const double share = goodput(*r.failures, best_interval(*r.failures));
  const RunCost cost = cost_of(r);
  EXPECT_NEAR(cost.goodput, share, 1e-12);
  EXPECT_NEAR(cost.wall / cost.useful, 1 / share, 1e-12);
  EXPECT_NEAR(cost.device_hours, 1e6 / share, 1);
}

// Checkpoints of an hour while failures come every minute: e^60 tries of each interval.
TEST(RunCost, ARunThatNeverEndsIsAnError) {
  RunRequest r = of_hours(1e6, 1024);
  r.failures = FailureModel{Seconds(60), Seconds(3600), Seconds(300)};
  const auto cost = run_cost(r);
  ASSERT_FALSE(cost.has_value());
  EXPECT_EQ(cost.error().front().code, base::ErrorCode::kUnsupported);
}

TEST(RunVerdict, ALimitIsMetUpToItself) {
  RunCost cost;
  cost.wall = Seconds(10 * kDay);
  cost.dollars = 5e6;
  EXPECT_TRUE(verdict_of(cost, {}).met());
  EXPECT_FALSE(verdict_of(cost, {}).deadline.has_value());
  const RunVerdict both = verdict_of(cost, {Seconds(10 * kDay), 5e6});
  EXPECT_TRUE(both.met() && *both.deadline && *both.budget);
  const RunVerdict late = verdict_of(cost, {Seconds(9 * kDay), 5e6});
  EXPECT_FALSE(late.met());
  EXPECT_TRUE(*late.budget);
  EXPECT_FALSE(verdict_of(cost, {Seconds(11 * kDay), 4.9e6}).met());
}

}  // namespace
}  // namespace orrery::sim
