/// Communication alone on the clock against its closed form.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/sim/step_maker.h"

namespace orrery::sim {
namespace {

using testing::star;
using testing::StepMaker;

std::int64_t all_reduce_alone(int n, std::int64_t bytes, std::int64_t bytes_per_second,
                              std::int64_t link_latency_ns) {
  StepMaker m(n);
  m.stages(1, n);
  m.run_once(0, {m.all_reduce("all_reduce", m.group(n, 1), bytes)});
  return m.run(star(n, bytes_per_second, link_latency_ns)).step_time_ps;
}

// 2(n-1)(alpha + S/(nB)): alpha = two links of 1000 ns, S/(nB) a whole number of picoseconds.
TEST(RingAllReduce, EqualsItsClosedFormToThePicosecond) {
  for (const std::int64_t n : {2, 3, 4, 8}) {
    for (const std::int64_t part : {1, 1000, 1 << 20}) {
      const std::int64_t step_ps = 2'000'000 + part * 40;  // 25 GB/s is 40 ps per byte
      EXPECT_EQ(all_reduce_alone(static_cast<int>(n), n * part, 25'000'000'000, 1000),
                2 * (n - 1) * step_ps)
          << n << " ranks, " << part;
    }
  }
}

// Steps that are no whole picoseconds, parts that are no whole bytes: the closed form lies within
// 2(n-1) ps.
TEST(RingAllReduce, IsWithinOnePicosecondAStepOtherwise) {
  for (const std::int64_t n : {3, 5, 7})
    for (const std::int64_t bytes : {1L, 1'000L, 142'859L, n * 142'859L, (1L << 30) + 1})
      for (const std::int64_t rate : {1'000'000'000L, 23'456'789'013L, 450'000'000'000L}) {
        const long double step =
            2'000'000.0L + 1e12L * static_cast<long double>(bytes) /
                               (static_cast<long double>(n) * static_cast<long double>(rate));
        const long double closed = 2.0L * static_cast<long double>(n - 1) * step;
        const long double error =
            static_cast<long double>(all_reduce_alone(static_cast<int>(n), bytes, rate, 1000)) -
            closed;
        EXPECT_LE(std::abs(error), static_cast<long double>(2 * (n - 1)))
            << n << " ranks, " << bytes << " bytes, " << rate << " bytes/s";
      }
}

TEST(RingAllReduce, SingleRankIsFree) {
  EXPECT_EQ(all_reduce_alone(1, 1 << 20, 1'000'000'000, 1000), 0);
}

// Two all-reduces of one class on two streams share every link: each has half the rate while both
// run. Alone A takes 2 * 1/2 * 4000 B / 1 GB/s = 4 us, B 8 us. Together A ends at 8 us; B has sent
// half by then and needs 4 us more.
TEST(SharedLinks, TransfersOfTwoStreamsShareFairly) {
  StepMaker m(2);
  m.stages(1, 2);
  const auto pair = m.group(2, 1);
  m.run_once(0, {m.all_reduce("a", pair, 4000, plan::Stream::kTensor),
                 m.all_reduce("b", pair, 8000, plan::Stream::kData)});
  const SimReport r = m.run(star(2, 1'000'000'000, 0), true);
  ASSERT_EQ(r.timeline.spans.size(), 2U);
  EXPECT_EQ(r.timeline.spans[0].duration_ps, 8 * testing::kMicrosecond);
  EXPECT_EQ(r.timeline.spans[1].duration_ps, 12 * testing::kMicrosecond);
  EXPECT_EQ(r.step_time_ps, 12 * testing::kMicrosecond);
}

// Two messages into one device (its down link is shared), from two classes: half the rate each,
// twice the time.
TEST(SharedLinks, MessagesOfTwoClassesIntoOneDeviceShareItsLink) {
  StepMaker m(3);
  m.stages(3, 1);
  const auto a = m.buffer("a", 4000), b = m.buffer("b", 4000);
  m.run_once(0, {m.exchange("send", plan::Stream::kForwardSend, {{true, 2, a}})});
  m.run_once(1, {m.exchange("send", plan::Stream::kForwardSend, {{true, 1, b}})});
  m.run_once(2, {m.exchange("receive both", plan::Stream::kForwardReceive,
                            {{false, -2, a}, {false, -1, b}})});
  EXPECT_EQ(m.run(star(3, 1'000'000'000, 0)).step_time_ps, 8 * testing::kMicrosecond);
}

}  // namespace
}  // namespace orrery::sim
