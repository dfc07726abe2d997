/// One rank without the others: solved by hand, and what it feeds back.
#include "sim/step/rank_alone.h"

#include <gtest/gtest.h>

#include "tests/unit/sim/step_maker.h"

namespace orrery::sim {
namespace {

using testing::kMicrosecond;
using testing::pipeline;
using testing::star;
using testing::StepMaker;

SimReport simulated(const StepMaker& maker, const SimOptions& options) {
  return simulate(maker.program, maker.cost(star(2, 1'000'000'000, 0)), options).value();
}

/// GPipe, f = 1, b = 2, messages of 1 us.
StepMaker two_stages() {
  return pipeline({.stages = 2, .micro_batches = 2, .message_bytes = 1000, .one_f_one_b = false});
}

// What comes from the other stage is there at once, but for its own time:
//   stage 0: F0 [0,1] F1 [1,2] B0 [2,4] B1 [4,6]; gradients arrive at 1 and 2
//   stage 1: activations arrive at 1 and 2; F0 [1,2] F1 [2,3] B0 [3,5] B1 [5,7]; B1's leaves [7,8]
TEST(RankAlone, WaitsForNoPeer) {
  const SimReport r = simulated(two_stages(), {.alone = true});
  ASSERT_EQ(r.alone.size(), 2U);
  for (const RankAlone& stage : r.alone) {
    EXPECT_EQ(stage.compute_ps, 6 * kMicrosecond);
    EXPECT_EQ(stage.communication_ps, 4 * kMicrosecond);
    EXPECT_EQ(stage.op_ps.size(), 8U);
  }
  EXPECT_EQ(r.alone[0].step_ps, 6 * kMicrosecond);
  EXPECT_EQ(r.alone[1].step_ps, 8 * kMicrosecond);
}

// One thread: stage 0 receives in [2,3] and [5,6], beside nothing; its sends hold nobody.
TEST(RankAlone, OneThreadRunsOperationsInTurnButForSends) {
  StepMaker maker = two_stages();
  maker.profile.overlaps = false;
  const SimReport r = simulated(maker, {.alone = true});
  EXPECT_EQ(r.alone[0].step_ps, 8 * kMicrosecond);
}

ComputeTimes times_of(const StepMaker& maker, std::int64_t factor) {
  ComputeTimes times;
  for (std::uint32_t c = 0; c < maker.program.classes.size(); ++c)
    plan::for_each_op(maker.program, maker.program.classes[c], [&](const plan::OpInstance& o) {
      if (o.op->kind != plan::OpKind::kCompute) return;
      const std::int64_t ps = o.op->name.starts_with("f") ? kMicrosecond : 2 * kMicrosecond;
      times[{c, o.source.raw(), o.index}] = factor * ps;
    });
  return times;
}

TEST(ComputeTimes, TakeThePlaceOfPrices) {
  const StepMaker maker = two_stages();
  const SimReport priced = simulated(maker, {}),
                  same = simulated(maker, {.compute = times_of(maker, 1)}),
                  slower = simulated(maker, {.compute = times_of(maker, 3)});
  EXPECT_EQ(same.step_time_ps, priced.step_time_ps);
  EXPECT_EQ(same.fingerprint, priced.fingerprint);
  // three passes of 9 us, and a message each way
  EXPECT_EQ(slower.step_time_ps, 29 * kMicrosecond);
  for (const StageReport& stage : slower.stages)
    EXPECT_EQ(stage.busy_compute_ps, 18 * kMicrosecond);
}

}  // namespace
}  // namespace orrery::sim
