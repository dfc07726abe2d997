#include "base/sim_time.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace orrery::base {
namespace {

TEST(SimTime, IsOrdered) {
  static_assert(SimTime() < SimTime::from_ps(3) && SimTime::from_ps(3).ps() == 3);
}

TEST(SimTime, SecondsAreRoundedUp) {
  EXPECT_EQ(ceil_ps(Seconds(1.1e-12)), 2);
  EXPECT_EQ(ceil_ps(Seconds(1e-20)), 1);
  EXPECT_EQ(ceil_ps(Seconds(0)), 0);
  EXPECT_EQ(ceil_ps(Seconds(1.0 / 3)), 333'333'333'334);
  EXPECT_EQ(ceil_ps(Seconds(-1.5e-12)), -1);
}

TEST(SimTime, ADecimalNumberOfPicosecondsIsKept) {
  EXPECT_EQ(ceil_ps(3.5_us), 3'500'000);
  EXPECT_EQ(ceil_ps(0.1_us), 100'000);
  EXPECT_EQ(ceil_ps(1.1_s), 1'100'000'000'000);
  for (std::int64_t ps = 1; ps < 2'000'000; ps += 37) {
    EXPECT_EQ(ceil_ps(Seconds(static_cast<double>(ps) / 1e12)), ps);
    EXPECT_EQ(ceil_ps(Seconds(static_cast<double>(ps) * 1e-12)), ps);
  }
}

TEST(SimTimeDeathTest, LeavingTheRangeIsOurBug) {
  EXPECT_DEATH(static_cast<void>(ceil_ps(Seconds(1e8))), "outside simulated time");
  EXPECT_DEATH(static_cast<void>(ceil_ps(Seconds(std::nan("")))), "outside simulated time");
  EXPECT_DEATH(static_cast<void>(ceil_ps(Seconds(std::numeric_limits<double>::infinity()))),
               "outside");
}

}  // namespace
}  // namespace orrery::base
