#include "sim/kernel/remaining_work.h"

#include <gtest/gtest.h>

namespace orrery::sim::kernel {
namespace {

TEST(RemainingWork, RoundsUpOnceAtTheEnd) {
  RemainingWork p(100, 10);
  p.set_speed(100, 3);
  EXPECT_EQ(p.end_ps(), 104);  // 10 / 3 = 3.33
  p.set_speed(102, 1);         // 4 units left
  EXPECT_EQ(p.end_ps(), 106);
}

TEST(RemainingWork, ChangesOfSpeedToTheSameSpeedChangeNothing) {
  RemainingWork whole(0, 1'000'003), parts(0, 1'000'003);
  whole.set_speed(0, 7);
  for (int t = 0; t < 100'000; t += 13) parts.set_speed(t, 7);
  EXPECT_EQ(parts.end_ps(), whole.end_ps());
}

TEST(RemainingWork, NoWorkEndsAtOnceWithoutSpeed) {
  RemainingWork p(42, 0);
  EXPECT_EQ(p.end_ps(), 42);
  p.set_speed(42, 0);
  EXPECT_EQ(p.end_ps(), 42);
}

TEST(RemainingWork, PausesAtSpeedZero) {
  RemainingWork p(0, 100);
  p.set_speed(0, 10);
  p.set_speed(4, 0);
  p.set_speed(1000, 20);
  EXPECT_EQ(p.end_ps(), 1003);
}

TEST(RemainingWork, HoldsPetabytesAtPicoseconds) {
  // 10^15 bytes at 1 byte/s, in byte·ps/s·ppm.
  const Int128 work = static_cast<Int128>(1'000'000'000'000'000) * 1'000'000'000'000 * 2'000'000;
  RemainingWork p(0, work);
  p.set_speed(0, static_cast<Int128>(1'000'000'000'000) * 2'000'000);
  EXPECT_EQ(p.end_ps(), 1'000'000'000'000'000);
}

}  // namespace
}  // namespace orrery::sim::kernel
