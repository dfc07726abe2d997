#include "costmodel/profiles/settings.h"

#include <gmock/gmock.h>

#include "costmodel/profiles/profiles.h"
#include "model/spec.h"

namespace orrery::costmodel {
namespace {

using testing::HasSubstr;

model::Profile profile() {
  model::Profile p{.name = "p"};
  p.framework = model::Framework{.kernel_seconds = 3e-6, .loss_passes = 23};
  p.overlap_slowdown = 1.1;
  return p;
}

base::Result<model::Profile> with(model::Profile p, const std::string& settings) {
  TRY(const auto parsed, base::parse_settings(settings));
  TRY_VOID(apply_settings(p, parsed));
  return p;
}

std::string fault(model::Profile p, const std::string& settings) {
  const auto changed = with(std::move(p), settings);
  return changed ? "no fault" : base::to_string(changed.error());
}

TEST(SoftwareSettings, ChangeOneNumber) {
  model::Profile expected = profile();
  expected.overlap_slowdown = 1;
  EXPECT_EQ(*with(profile(), "software.overlap_slowdown=1"), expected);
  expected.framework->kernel_seconds = 6e-6;
  EXPECT_EQ(*with(profile(), "software.overlap_slowdown=1,software.kernel_seconds=2x"), expected);
}

TEST(SoftwareSettings, OfTheMachineArePassedOver) {
  EXPECT_EQ(*with(profile(), "ib.bandwidth=2x,device.memory=96GiB"), profile());
}

TEST(SoftwareSettings, ThatFindNothingAreFaults) {
  EXPECT_THAT(fault(profile(), "software.overlap=1"), HasSubstr("software has no 'overlap'"));
  EXPECT_THAT(fault(profile(), "software.factor=-1"), HasSubstr("above zero"));
  EXPECT_THAT(fault(profile(), "software.factor=fast"), HasSubstr("a number or a factor"));
}

TEST(SoftwareSettings, ThatMeasurementsHideAreRefused) {
  model::Profile measured = profile();
  measured.operators.push_back({});
  EXPECT_THAT(fault(measured, "device.peak_bf16=2x"), HasSubstr("has measured operations"));
  EXPECT_EQ(fault(measured, "device.memory=2x"), "no fault");
  EXPECT_EQ(fault(measured, "ib.bandwidth=2x"), "no fault");
  measured.collectives.push_back({});
  EXPECT_THAT(fault(measured, "ib.bandwidth=2x"), HasSubstr("has measured collectives"));
}

}  // namespace
}  // namespace orrery::costmodel
