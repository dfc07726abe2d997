#include "cli/block_shapes.h"

#include <gtest/gtest.h>

namespace orrery::cli {
namespace {

TEST(BlockShapes, HeldOutBlocksAreInsideTheCalibratedRangeAndNotInIt) {
  for (const BlockRow& held : kHeldOutOnCpu) {
    bool narrower = false, wider = false;
    for (const BlockRow& c : kCalibratedOnCpu) {
      EXPECT_FALSE(c.family == held.family && c.hidden == held.hidden && c.tokens == held.tokens &&
                   c.sequences == held.sequences);
      narrower = narrower || (c.family == held.family && c.hidden < held.hidden);
      wider = wider || (c.family == held.family && c.hidden > held.hidden);
    }
    EXPECT_TRUE(narrower && wider) << held.hidden;
  }
}

TEST(BlockShapes, AreModelsOfOneValidLayer) {
  for (const auto rows :
       {std::span<const BlockRow>(kCalibratedOnCpu), std::span<const BlockRow>(kHeldOutOnCpu),
        std::span<const BlockRow>(kHeldOutOnGpu)}) {
    const auto cases = blocks_of(rows);
    ASSERT_EQ(cases.size(), rows.size());
    for (const executor::BlockCase& c : cases) {
      EXPECT_EQ(c.model.layers, 1);
      EXPECT_EQ(c.model.head_dim * c.model.heads, c.model.hidden) << c.model.name;
      EXPECT_EQ(c.model.heads % c.model.kv_heads, 0) << c.model.name;
      EXPECT_EQ(c.tokens, c.model.max_positions) << c.model.name;
    }
  }
}

}  // namespace
}  // namespace orrery::cli
