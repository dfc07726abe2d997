#include "base/units.h"

#include <gtest/gtest.h>

#include <concepts>

namespace orrery::base {
namespace {

template <class A, class B>
concept Addable = requires(A a, B b) {
  a + b;
};

static_assert(std::same_as<decltype(Bytes() / BytesPerSecond()), Seconds>);
static_assert(std::same_as<decltype(Flops() / Seconds()), FlopsPerSecond>);
static_assert(std::same_as<decltype(FlopsPerSecond() / BytesPerSecond()), FlopsPerByte>);
static_assert(std::same_as<decltype(Seconds() / Seconds()), double>);
static_assert(std::same_as<decltype(BytesPerSecond() * Seconds()), Bytes>);
static_assert(!Addable<Seconds, Bytes>);
static_assert(!Addable<Seconds, double>);
static_assert(!std::convertible_to<double, Seconds>);
static_assert(sizeof(Seconds) == sizeof(double));

TEST(Units, OneGibibyteOverTwoHundredGigabitsPerSecondTakes42Point9Milliseconds) {
  EXPECT_DOUBLE_EQ((1_GiB / 200_Gbps).raw(), 1073741824.0 / 25e9);
}

TEST(Units, LiteralsAreTheNearestDoubles) {
  EXPECT_EQ((3.5_us).raw(), 3.5e-6);
  EXPECT_EQ((7_ns).raw(), 7e-9);
  EXPECT_EQ((36_GiB).raw(), 38654705664.0);
  EXPECT_EQ((312_TFLOPS).raw(), 312e12);
}

TEST(Units, PrintThreeDigitsAndTheUnitThatSuits) {
  EXPECT_EQ(to_string(Seconds(4.194)), "4.19 s");
  EXPECT_EQ(to_string(3.5_us), "3.5 us");
  EXPECT_EQ(to_string(Seconds(0)), "0 s");
  EXPECT_EQ(to_string(Seconds(0.9999)), "1 s");
  EXPECT_EQ(to_string(Seconds(86400)), "24 h");
  EXPECT_EQ(to_string(Seconds(-0.0123)), "-12.3 ms");
  EXPECT_EQ(to_string(36_GiB), "36 GiB");
  EXPECT_EQ(to_string(Bytes(1023)), "1023 B");
  EXPECT_EQ(to_string(Bytes(1000 * 1048576.0)), "1000 MiB");
  EXPECT_EQ(to_string(200_Gbps), "25 GB/s");
  EXPECT_EQ(fmt::format("{:>8}", 1_s), "     1 s");
}

TEST(ParseSeconds, KnowsItsUnits) {
  EXPECT_EQ(parse_seconds("3.5us"), 3.5_us);
  EXPECT_EQ(parse_seconds(" 3.5 us "), 3.5_us);
  EXPECT_EQ(parse_seconds("700ps")->raw(), 700e-12);
  EXPECT_EQ(parse_seconds("1e3ms"), 1_s);
  EXPECT_EQ(parse_seconds("2 min"), 120_s);
  EXPECT_EQ(parse_seconds("1h"), 3600_s);
  EXPECT_EQ(parse_seconds("0s"), 0_s);
}

TEST(ParseBytes, SeparatesPowersOf1000And1024) {
  EXPECT_EQ(parse_bytes("36GiB"), 36_GiB);
  EXPECT_EQ(parse_bytes("36GB")->raw(), 36e9);
  EXPECT_EQ(parse_bytes("1.5 KiB")->raw(), 1536);
  EXPECT_EQ(parse_bytes("12B"), 12_B);
}

TEST(ParseBandwidth, SeparatesBitsAndBytes) {
  EXPECT_EQ(parse_bandwidth("300GB/s"), 300_GBps);
  EXPECT_EQ(parse_bandwidth("200Gb/s"), 200_Gbps);
  EXPECT_EQ(parse_bandwidth("200Gbps"), 200_Gbps);
  EXPECT_EQ(parse_bandwidth("1GiB/s")->raw(), 1073741824.0);
}

TEST(ParseFlopsRate, KnowsItsUnits) {
  EXPECT_EQ(parse_flops_rate("312TFLOP/s"), 312_TFLOPS);
  EXPECT_EQ(parse_flops_rate("312 TFLOPS"), 312_TFLOPS);
  EXPECT_EQ(parse_flops_rate("1PFLOP/s")->raw(), 1e15);
}

TEST(ParsePower, KnowsItsUnits) {
  EXPECT_EQ(parse_power("700 W")->raw(), 700);
  EXPECT_EQ(parse_power("1.2kW")->raw(), 1200);
  EXPECT_FALSE(parse_power("700"));
}

template <class Q>
void expect_error(const Result<Q>& value, const std::string& text) {
  ASSERT_FALSE(value) << text;
  EXPECT_EQ(to_string(value.error()), text);
}

TEST(ParseDollars, KnowsItsUnits) {
  EXPECT_EQ(parse_dollars("2.1$")->raw(), 2.1);
  EXPECT_EQ(parse_dollars("5 M$")->raw(), 5e6);
  EXPECT_EQ(parse_dollars("1.5B$")->raw(), 1.5e9);
  expect_error(parse_dollars("2.1"),
               "error[E0004]: '2.1' has no unit: expected a sum of money; units: $ K$ M$ B$");
}

TEST(ParseCount, TakesShortScalesAndWholeNumbers) {
  EXPECT_EQ(parse_count("15T")->raw(), 15e12);
  EXPECT_EQ(parse_count("14.8 T")->raw(), 14.8e12);
  EXPECT_EQ(parse_count("300B")->raw(), 300e9);
  EXPECT_EQ(parse_count("2M")->raw(), 2e6);
  EXPECT_EQ(parse_count("4K")->raw(), 4e3);
  EXPECT_EQ(parse_count("1000")->raw(), 1000);
  EXPECT_EQ(parse_count("3e12")->raw(), 3e12);
  expect_error(parse_count("15G"),
               "error[E0004]: 'G' is not a unit of count in '15G'; units: K M B T");
  EXPECT_FALSE(parse_count(""));
  EXPECT_FALSE(parse_count("-1"));
  EXPECT_FALSE(parse_count("15x"));
}

TEST(ParseQuantity, WithoutAUnitIsAnErrorThatListsTheUnits) {
  expect_error(parse_seconds("3"),
               "error[E0004]: '3' has no unit: expected a time; units: ps ns us ms s min h d");
  expect_error(parse_bytes("36 GiBs"),
               "error[E0004]: 'GiBs' is not a unit of size in '36 GiBs'; units: B kB MB GB TB KiB "
               "MiB GiB TiB");
}

TEST(ParseQuantity, RefusesOtherDimensionsAndOtherSpellings) {
  for (const char* text : {"", "us", "3.5 GB", "3.5US", "3.5 u s", "3,5us", "+3us", "0x3us", "infs",
                           "nans", "1e999s", "1.2.3s", "--1s", ".s", "e5s"}) {
    const auto value = parse_seconds(text);
    ASSERT_FALSE(value) << text;
    EXPECT_EQ(value.error().at(0).code, ErrorCode::kBadUnit) << text;
  }
}

TEST(ParseQuantity, RefusesNegativeAndOverflowingValues) {
  expect_error(parse_seconds("-1s"), "error[E0005]: time '-1s' is negative");
  expect_error(parse_flops_rate("1e300PFLOP/s"),
               "error[E0005]: compute rate '1e300PFLOP/s' is too large");
}

}  // namespace
}  // namespace orrery::base
