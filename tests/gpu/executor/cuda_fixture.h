#pragma once
#include <gtest/gtest.h>

#include "executor/state/device.h"

namespace orrery::executor {

/// Tests that need a CUDA device; without one they are skipped.
class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    device_ = *open_device("cuda", 0);
  }
  c10::Device device_{c10::kCPU};
};

}  // namespace orrery::executor
