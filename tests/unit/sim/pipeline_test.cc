/// Pipelines of equal stages and free messages: the textbook formulas, exactly.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/sim/step_maker.h"

namespace orrery::sim {
namespace {

using testing::kMicrosecond;
using testing::pipeline;
using testing::star;

struct Case {
  int stages, micro_batches;
  bool one_f_one_b;
};
class Pipeline : public ::testing::TestWithParam<Case> {};

// (m + p - 1)(f + b), of which (p - 1)(f + b) is bubble on every stage: GPipe (arXiv 1811.06965),
// 1F1B (arXiv 2006.09503).
TEST_P(Pipeline, BubbleIsPMinusOneOverMPlusPMinusOne) {
  const auto [p, m, one_f_one_b] = GetParam();
  const SimReport r = pipeline({.stages = p, .micro_batches = m, .one_f_one_b = one_f_one_b})
                          .run(star(p, 1'000'000'000, 0));
  const std::int64_t pass = 3 * kMicrosecond;
  EXPECT_EQ(r.step_time_ps, (m + p - 1) * pass);
  for (const StageReport& s : r.stages) {
    EXPECT_EQ(s.busy_compute_ps, m * pass);
    EXPECT_EQ(s.idle_ps, (p - 1) * pass);
    EXPECT_EQ(s.exposed_pipeline_ps, 0);
  }
  EXPECT_DOUBLE_EQ(r.bubble_fraction, static_cast<double>(p - 1) / (m + p - 1));
  EXPECT_DOUBLE_EQ(r.exposed_communication_fraction, 0.0);
}

// Stash of a micro-batch lives from its forward to its backward: GPipe holds m of them, 1F1B min(p
// - stage, m).
TEST_P(Pipeline, HoldsItsMicroBatchesInFlight) {
  const auto [p, m, one_f_one_b] = GetParam();
  constexpr std::int64_t kStash = 1000;
  const SimReport r =
      pipeline({.stages = p, .micro_batches = m, .stash_bytes = kStash, .one_f_one_b = one_f_one_b})
          .run(star(p, 1'000'000'000, 0));
  for (int s = 0; s < p; ++s) {
    const int held = one_f_one_b ? std::min(p - s, m) : m;
    EXPECT_EQ(r.stages[static_cast<std::size_t>(s)].timeline_peak_bytes, held * kStash)
        << "stage " << s;
    EXPECT_EQ(r.stages[static_cast<std::size_t>(s)].peak_memory_bytes, held * kStash)
        << "stage " << s;
  }
}

// One thread per rank (no overlap): sends are posted, receives block, and the schedule has the same
// length.
TEST_P(Pipeline, OneThreadPerRankGivesTheSameBubbleWhenMessagesAreFree) {
  const auto [p, m, one_f_one_b] = GetParam();
  auto maker = pipeline({.stages = p, .micro_batches = m, .one_f_one_b = one_f_one_b});
  maker.profile.overlaps = false;
  EXPECT_EQ(maker.run(star(p, 1'000'000'000, 0)).step_time_ps, (m + p - 1) * 3 * kMicrosecond);
}

INSTANTIATE_TEST_SUITE_P(All, Pipeline,
                         ::testing::Values(Case{1, 1, true}, Case{1, 4, false}, Case{2, 1, true},
                                           Case{2, 4, true}, Case{2, 4, false}, Case{4, 2, true},
                                           Case{4, 8, true}, Case{4, 8, false}, Case{8, 3, true},
                                           Case{8, 32, true}),
                         [](const auto& tested) {
                           return fmt::format("p{}_m{}_{}", tested.param.stages,
                                              tested.param.micro_batches,
                                              tested.param.one_f_one_b ? "1f1b" : "gpipe");
                         });

// Two stages, two micro-batches, GPipe, messages of 1 us (1000 B at 1 GB/s), f = 1, b = 2, forward
// only needs a look:
//   stage 0: F0 [0,1] F1 [1,2]            stage 1: F0 [2,3] F1 [3,4] B0 [4,6] B1 [6,8]
//   gradients leave at 6 and 8, arrive at 7 and 9:   stage 0: B0 [7,9] B1 [9,11]
// Messages run beside compute at full speed (no slowdown). Stage 0 idles [3,6]; its messages are
// exposed in [2,3] (F1's) and [6,7].
TEST(PipelineTiming, MessagesDelayTheNextStage) {
  const SimReport r =
      pipeline({.stages = 2, .micro_batches = 2, .message_bytes = 1000, .one_f_one_b = false})
          .run(star(2, 1'000'000'000, 0));
  EXPECT_EQ(r.step_time_ps, 11 * kMicrosecond);
  EXPECT_EQ(r.stages[0].busy_compute_ps, 6 * kMicrosecond);
  EXPECT_EQ(r.stages[0].exposed_pipeline_ps, 2 * kMicrosecond);
  EXPECT_EQ(r.stages[0].idle_ps, 3 * kMicrosecond);
  EXPECT_EQ(r.stages[1].exposed_pipeline_ps, 2 * kMicrosecond);  // [1,2] and [8,9]
  EXPECT_EQ(r.stages[1].idle_ps, 3 * kMicrosecond);              // [0,1] and [9,11]
}

}  // namespace
}  // namespace orrery::sim
