#include "cli/text/report_time.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

namespace orrery::cli {
namespace {

TEST(ReportTime, AStepHasFiveDigitsInItsUnit) {
  const auto step = [](std::int64_t ps) {
    const ReportTime time(ps);
    return time.show(time.ticks(ps));
  };
  EXPECT_EQ(step(6'442'149'999'999), "6.4421 s");
  EXPECT_EQ(step(12'573'400'000'000), "12.573 s");
  EXPECT_EQ(step(62'312'499'999), "62.312 ms");
  EXPECT_EQ(step(7), "7 ps");
  EXPECT_EQ(step(1'234), "1.234 ns");
}

TEST(ReportTime, DifferencesHaveTheStepsDigits) {
  const ReportTime time(6'442'100'000'000);
  EXPECT_EQ(time.show_signed(time.ticks(6'482'900'000'000) - time.ticks(6'442'100'000'000)),
            "+0.0408 s");
  EXPECT_EQ(time.show_signed(time.ticks(-214'040'000'000)), "-0.2140 s");
  EXPECT_EQ(time.show_signed(0), "+0.0000 s");
}

// Rounded one by one, 1.4 + 1.4 + 1.4 ticks would be 3, their sum 4.
TEST(ReportTime, PartsAddUpToTheirSum) {
  const ReportTime time(10'000'000'000'000);  // ticks of 1 ms
  const std::array<std::int64_t, 4> parts{1'400'000'000, 1'400'000'000, -300'000'000,
                                          1'400'000'000};
  const std::vector<std::int64_t> ticks = time.ticks(parts);
  EXPECT_EQ(std::accumulate(ticks.begin(), ticks.end(), std::int64_t{0}),
            time.ticks(3'900'000'000));
  for (std::size_t i = 0; i < parts.size(); ++i)
    EXPECT_NEAR(static_cast<double>(ticks[i]), static_cast<double>(parts[i]) / 1e9, 1.0);
}

}  // namespace
}  // namespace orrery::cli
