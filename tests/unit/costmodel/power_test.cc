// What kernels, devices and hosts draw, solved by hand on a machine with round numbers.
#include "costmodel/energy/power.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

using model::Phase;
using model::SegmentKind;
using testing::ElementsAre;
using testing::HasSubstr;

model::SegmentShape product(std::int64_t tokens, std::int64_t features) {
  model::SegmentShape s;
  s.kind = SegmentKind::kMlpIn;
  s.dtype = model::DType::kBFloat16;
  s.sequences = 1;
  s.tokens = tokens;
  s.in = s.out = features;
  return s;
}

double share(PowerKind kind) { return kPowerShares[as_index(kind)]; }

// 2 * 4096^3 FLOP at 0.8 of 100 TFLOP/s: 1.718 ms. In five times that the rate is a fifth of what
// is attainable, u = 0.5; at half of it power limits the kernel, u = 1.
TEST(ComputeDraw, AProductDrawsByItsShareOfTheAttainableRate) {
  const Roofline device = Roofline::of(machines::cluster(2).device_model(0));
  const auto shape = product(4096, 4096);
  const double full = 2 * 4096.0 * 4096 * 4096 / 80e12;
  const Draw slow = compute_draw(device, shape, Phase::kF, 5 * full);
  EXPECT_EQ(slow.kind, PowerKind::kProduct);
  EXPECT_NEAR(slow.share, 0.5, 1e-12);
  for (const double times : {2.0, 1.0, 0.3})
    EXPECT_EQ(compute_draw(device, shape, Phase::kF, times * full).share, 1) << times;
}

TEST(ComputeDraw, NoKernelDrawsLessThanOneThatWaits) {
  const Roofline device = Roofline::of(machines::cluster(2).device_model(0));
  EXPECT_EQ(compute_draw(device, product(16, 64), Phase::kF, 1.0).share, share(PowerKind::kWait));
}

// One token: 2 * 4096^2 FLOP are 0.42 us, its weights 2 * 4096^2 bytes 42 us.
TEST(ComputeDraw, AProductThatMemoryBoundsIsOfKindMemory) {
  const Roofline device = Roofline::of(machines::cluster(2).device_model(0));
  const auto shape = product(1, 4096);
  const double least = device.bounds(shape, Phase::kF).memory;
  EXPECT_NEAR(least, 42e-6, 1e-6);
  const Draw draw = compute_draw(device, shape, Phase::kF, 4 * least);
  EXPECT_EQ(draw.kind, PowerKind::kMemory);
  EXPECT_NEAR(draw.share, share(PowerKind::kMemory) / 4, 1e-12);
}

TEST(CommunicationDraw, DependsOnWhereItGoes) {
  EXPECT_EQ(communication_draw(false), (Draw{PowerKind::kInHost, share(PowerKind::kInHost)}));
  EXPECT_EQ(communication_draw(true).kind, PowerKind::kAcrossHosts);
}

TEST(MachinePower, SaysWhatItAssumed) {
  topologies::DeviceModel model = machines::device();
  model.power = base::Watts(400);
  const auto cluster = machines::cluster(8, 2, 100'000'000'000, 1, machines::core(), model);
  const auto power = MachinePower::of(cluster);
  ASSERT_TRUE(power.has_value());
  EXPECT_NEAR(power->models()[0].idle.raw(), 52, 1e-9);
  EXPECT_EQ(power->host(1).raw(), 2400);
  EXPECT_EQ(power->fabric_per_device().raw(), 0);
  EXPECT_THAT(power->assumed(),
              ElementsAre("an idle T100-80GB draws 52 W", "a host draws 2400 W beside its devices",
                          "switches between hosts draw nothing"));
}

TEST(MachinePower, TakesWhatTheCatalogSays) {
  const auto h100 = topologies::catalog_topology("dgx-h100", 2);
  ASSERT_TRUE(h100.has_value());
  const auto power = MachinePower::of(*h100);
  ASSERT_TRUE(power.has_value());
  EXPECT_THAT(power->assumed(), ElementsAre());
  EXPECT_EQ(power->models()[0].at(0.5).raw(), 70 + 630 * 0.5);
  EXPECT_EQ(power->host(0).raw(), 2400);
  EXPECT_EQ(power->fabric_per_device().raw(), 53);
}

TEST(MachinePower, ADeviceWithoutALimitIsAnError) {
  const auto power = MachinePower::of(machines::cluster(2));
  ASSERT_FALSE(power.has_value());
  EXPECT_THAT(base::to_string(power.error()),
              HasSubstr("cluster 'machine' does not say what a T100-80GB may draw"));
}

}  // namespace
}  // namespace orrery::costmodel
