#include "costmodel/closed_form/megatron_memory.h"

#include <gtest/gtest.h>

namespace orrery::costmodel {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

/// arXiv 2205.05198, figure 1 with the settings of its table 3; numbers as coded in
/// calculon-ai/calculon's validation.py.
struct Bar {
  const char* model;
  MegatronSizes sizes;
  double states, baseline, present;  // GiB
};
const Bar kFigure1[] = {
    {"22B",
     {.sequence = 2048,
      .micro_batch = 4,
      .hidden = 6144,
      .heads = 64,
      .layers = 48,
      .tp = 8,
      .pp = 1,
      .virtual_stages = 1},
     45.5625,
     59.25,
     9.5625},
    {"175B",
     {.sequence = 2048,
      .micro_batch = 1,
      .hidden = 12288,
      .heads = 96,
      .layers = 96,
      .tp = 8,
      .pp = 8,
      .virtual_stages = 3},
     45.5625,
     66.84375,
     12.3515625},
    {"530B",
     {.sequence = 2048,
      .micro_batch = 1,
      .hidden = 20480,
      .heads = 128,
      .layers = 105,
      .tp = 8,
      .pp = 35,
      .virtual_stages = 3},
     31.640625,
     114.0234375,
     23.076171875},
    {"1T",
     {.sequence = 2048,
      .micro_batch = 1,
      .hidden = 25600,
      .heads = 160,
      .layers = 128,
      .tp = 8,
      .pp = 64,
      .virtual_stages = 1},
     32.958984375,
     131.25,
     26.5625},
};

TEST(MegatronMemory, EqualsFigure1OfThePaper) {
  for (const Bar& bar : kFigure1) {
    EXPECT_NEAR(megatron_state_bytes(bar.sizes).raw() / kGiB, bar.states, 1e-6) << bar.model;
    EXPECT_NEAR(megatron_activation_bytes(bar.sizes, false, plan::Recompute::kNone).raw() / kGiB,
                bar.baseline, 1e-6)
        << bar.model;
    EXPECT_NEAR(
        megatron_activation_bytes(bar.sizes, true, plan::Recompute::kSelective).raw() / kGiB,
        bar.present, 1e-6)
        << bar.model;
  }
}

// 2 sbh of each layer: 2 * 2048 * 4 * 6144 bytes.
TEST(MegatronMemory, FullRecomputationKeepsTheInputsOfLayers) {
  EXPECT_DOUBLE_EQ(
      megatron_activation_bytes(kFigure1[0].sizes, false, plan::Recompute::kFull).raw(),
      48.0 * 2 * 2048 * 4 * 6144);
}

}  // namespace
}  // namespace orrery::costmodel
