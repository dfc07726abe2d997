#include "base/sim_time.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace orrery::base {
namespace {

TEST(SimTime, SumsAreExact) {
  constexpr SimTime a = SimTime::from_ps(3);
  static_assert((a + SimTime::from_ps(4)).ps() == 7);
  static_assert((a - SimTime::from_ps(4)).ps() == -1);
  static_assert((3 * a).ps() == 9 && (a * 3).ps() == 9);
  static_assert(SimTime() < a && a < SimTime::max());
}

TEST(SimTime, SecondsAreRoundedUp) {
  EXPECT_EQ(SimTime::ceil(Seconds(1.1e-12)).ps(), 2);
  EXPECT_EQ(SimTime::ceil(Seconds(1e-20)).ps(), 1);
  EXPECT_EQ(SimTime::ceil(Seconds(0)).ps(), 0);
  EXPECT_EQ(SimTime::ceil(Seconds(1.0 / 3)).ps(), 333'333'333'334);
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

TEST(SimTime, PrintsAsSeconds) {
  EXPECT_EQ(to_string(SimTime::from_ps(12'345'000)), "12.3 us");
  EXPECT_EQ(fmt::format("{}", SimTime::from_ps(5)), "5 ps");
}

TEST(SimTimeDeathTest, LeavingTheRangeIsOurBug) {
  EXPECT_DEATH(static_cast<void>(SimTime::max() + SimTime::from_ps(1)), "out of range");
  EXPECT_DEATH(static_cast<void>(SimTime::max() * 2), "out of range");
  EXPECT_DEATH(static_cast<void>(SimTime::ceil(Seconds(1e8))), "outside simulated time");
  EXPECT_DEATH(static_cast<void>(SimTime::ceil(Seconds(std::nan("")))), "outside simulated time");
  EXPECT_DEATH(static_cast<void>(SimTime::ceil(Seconds(std::numeric_limits<double>::infinity()))),
               "outside");
}

}  // namespace
}  // namespace orrery::base
