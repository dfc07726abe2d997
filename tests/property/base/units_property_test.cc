#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstdint>

#include "base/sim_time.h"
#include "base/units.h"

namespace orrery::base {
namespace {

/// A number with few digits, as people write them, and the text of it.
struct Written {
  double value;
  std::string text;
};

Written written() {
  const int mantissa = *rc::gen::inRange(0, 1'000'000);
  const int decimals = *rc::gen::inRange(0, 6);
  const double value = mantissa / std::pow(10.0, decimals);
  return {value, fmt::format("{}", value)};
}

RC_GTEST_PROP(ParseQuantity, ScalesByItsUnit, ()) {
  const Written w = written();
  RC_ASSERT(parse_seconds(w.text + "s").value().raw() == w.value);
  RC_ASSERT(parse_seconds(w.text + " us").value().raw() == w.value / 1e6);
  RC_ASSERT(parse_bytes(w.text + "GiB").value().raw() == w.value * 0x1p30);
  RC_ASSERT(parse_bandwidth(w.text + "Gb/s").value() * 8 ==
            parse_bandwidth(w.text + "GB/s").value());
}

RC_GTEST_PROP(ParseQuantity, ReadsWhatToStringWritesWithinThreeDigits, ()) {
  const double value = std::exp(*rc::gen::inRange(-270, 300) / 10.0);
  const auto near = [&](double read) { return std::fabs(read - value) <= 0.006 * value; };
  RC_ASSERT(near(parse_seconds(to_string(Seconds(value))).value().raw()));
  RC_ASSERT(near(parse_bandwidth(to_string(BytesPerSecond(value * 1e12))).value().raw() / 1e12));
}

RC_GTEST_PROP(ParseQuantity, NeverThrowsOnAnyText, (const std::string& text)) {
  static_cast<void>(parse_seconds(text));
  static_cast<void>(parse_bytes(text));
  static_cast<void>(parse_bandwidth(text));
  static_cast<void>(parse_flops_rate(text));
}

RC_GTEST_PROP(CeilPs, IsNeverEarlyAndNeverAPicosecondLate, ()) {
  const double seconds =
      static_cast<double>(*rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 52)) *
      std::pow(10.0, -*rc::gen::inRange(12, 28));
  const auto ps = static_cast<long double>(ceil_ps(Seconds(seconds)));
  const long double exact = static_cast<long double>(seconds) * 1e12L;
  RC_ASSERT(ps >= exact * (1 - 0x1p-51L));
  RC_ASSERT(ps < exact + 1);
}

RC_GTEST_PROP(CeilPs, KeepsTheOrder, ()) {
  const double a = *rc::gen::inRange(0, 1'000'000'000) * 1e-15;
  const double b = std::nextafter(a, 1.0);
  RC_ASSERT(ceil_ps(Seconds(a)) <= ceil_ps(Seconds(b)));
}

}  // namespace
}  // namespace orrery::base
