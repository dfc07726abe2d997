#include "costmodel/memory_limit.h"

#include <gtest/gtest.h>

#include "model/spec.h"
#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

model::Profile keeping(std::int64_t measured_context) {
  model::Profile profile;
  profile.name = "kept";
  profile.context_bytes = measured_context;
  profile.framework = model::Framework{
      .name = "f", .driver_share = 0.01, .context_bytes = 1000, .communicator_bytes = 200};
  return profile;
}

CostModel cost_of(int devices, const std::optional<model::Profile>& profile) {
  auto cost = CostModel::make(model::find_model("gpt2").value(), machines::cluster(devices),
                              profile, {.sequence = 512});
  EXPECT_TRUE(cost.has_value());
  return *std::move(cost);
}

TEST(MemoryLimit, KeepsDriverContextAndACommunicatorForEachGroupThatDevicesMake) {
  const auto kept = [](int devices) {
    const CostModel cost = cost_of(devices, keeping(0));
    const std::int64_t memory = cost.topology().device_model(0).memory_bytes;
    EXPECT_EQ(MemoryLimit(cost, 0).least(), memory - kept_bytes(cost, 0));
    return kept_bytes(cost, 0) - (memory + 99) / 100;
  };
  EXPECT_EQ(kept(1), 1000);
  EXPECT_EQ(kept(2), 1200);
  EXPECT_EQ(kept(3), 1200);
  EXPECT_EQ(kept(4), 1400);
  EXPECT_EQ(kept(8), 1600);
  EXPECT_EQ(kept(16), 1600);  // three groups at most
}

TEST(MemoryLimit, AMeasuredContextCountsWithTheBuffersAlone) {
  const CostModel cost = cost_of(1, keeping(5000));
  EXPECT_EQ(kept_bytes(cost, 0), (cost.topology().device_model(0).memory_bytes + 99) / 100);
}

TEST(MemoryLimit, WhatIsStatedIsTheAllocators) {
  EXPECT_EQ(MemoryLimit(cost_of(8, keeping(0)), 12345).least(), 12345);
}

TEST(MemoryLimit, WithoutAFrameworkNothingIsKept) {
  EXPECT_EQ(kept_bytes(cost_of(8, std::nullopt), 0), 0);
}

}  // namespace
}  // namespace orrery::costmodel
