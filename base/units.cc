#include "base/units.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/sim_time.h"
#include "base/text.h"

namespace orrery::base {
namespace {

using enum ErrorCode;

/// value in SI = number * multiply / divide. Dividing by a power of ten that a double holds exactly
/// makes "3.5us" the double nearest to 3.5e-6; multiplying by the inexact 1e-6 would not.
struct Unit {
  std::string_view name;
  double multiply = 1.0;
  double divide = 1.0;
  bool alias = false;  ///< accepted, not listed in hints
};

constexpr std::array kTimeUnits = {
    Unit{"ps", 1, 1e12}, Unit{"ns", 1, 1e9}, Unit{"us", 1, 1e6}, Unit{"ms", 1, 1e3},
    Unit{"s"},           Unit{"min", 60},    Unit{"h", 3600},    Unit{"d", 86400},
};
constexpr std::array kSizeUnits = {
    Unit{"B"},
    Unit{"kB", 1e3},
    Unit{"MB", 1e6},
    Unit{"GB", 1e9},
    Unit{"TB", 1e12},
    Unit{"KiB", 1024},
    Unit{"MiB", 1048576},
    Unit{"GiB", 1073741824},
    Unit{"TiB", 1099511627776},
};
constexpr std::array kBandwidthUnits = {
    Unit{"B/s"},
    Unit{"kB/s", 1e3},
    Unit{"MB/s", 1e6},
    Unit{"GB/s", 1e9},
    Unit{"TB/s", 1e12},
    Unit{"KiB/s", 1024},
    Unit{"MiB/s", 1048576},
    Unit{"GiB/s", 1073741824},
    Unit{"TiB/s", 1099511627776},
    Unit{"PB/s", 1e15, 1, true},
    Unit{"b/s", 1, 8},
    Unit{"kb/s", 1e3, 8},
    Unit{"Mb/s", 1e6, 8},
    Unit{"Gb/s", 1e9, 8},
    Unit{"Tb/s", 1e12, 8},
    Unit{"Mbps", 1e6, 8, true},
    Unit{"Gbps", 1e9, 8, true},
    Unit{"Tbps", 1e12, 8, true},
};
constexpr std::array kFlopsRateUnits = {
    Unit{"FLOP/s"},
    Unit{"MFLOP/s", 1e6},
    Unit{"GFLOP/s", 1e9},
    Unit{"TFLOP/s", 1e12},
    Unit{"PFLOP/s", 1e15},
    Unit{"GFLOPS", 1e9, 1, true},
    Unit{"TFLOPS", 1e12, 1, true},
    Unit{"PFLOPS", 1e15, 1, true},
};

constexpr std::array kMoneyUnits = {Unit{"$"}, Unit{"K$", 1e3}, Unit{"M$", 1e6}, Unit{"B$", 1e9}};
constexpr std::array kCountUnits = {Unit{"K", 1e3}, Unit{"M", 1e6}, Unit{"B", 1e9},
                                    Unit{"T", 1e12}};
constexpr std::array kPowerUnits = {Unit{"W"}, Unit{"kW", 1e3}};

Diagnostic bad_unit(std::string message, std::span<const Unit> units) {
  std::string names;
  for (const Unit& unit : units) {
    if (unit.alias) continue;
    names += names.empty() ? "" : " ";
    names += unit.name;
  }
  return Diagnostic{.code = kBadUnit, .message = std::move(message), .hint = "units: " + names};
}

Result<double> parse_quantity(std::string_view text, std::string_view dimension,
                              std::span<const Unit> units) {
  const std::string_view body = trim(text);
  // The number is the longest prefix of digits, sign, point and exponent; "e" counts only when
  // digits follow.
  std::size_t end = 0;
  const auto digit = [&](std::size_t i) {
    return i < body.size() && body[i] >= '0' && body[i] <= '9';
  };
  if (end < body.size() && body[end] == '-') ++end;
  while (digit(end) || (end < body.size() && body[end] == '.')) ++end;
  if (end < body.size() && (body[end] == 'e' || body[end] == 'E')) {
    std::size_t exponent = end + 1;
    if (exponent < body.size() && (body[exponent] == '-' || body[exponent] == '+')) ++exponent;
    if (digit(exponent)) {
      while (digit(exponent)) ++exponent;
      end = exponent;
    }
  }
  const std::string_view name = trim(body.substr(end));
  const auto number = parse_real(body.substr(0, end));
  if (!number)
    return fail(bad_unit(
        fmt::format("'{}' is not a {}: expected a number and a unit", text, dimension), units));
  if (name.empty())
    return fail(bad_unit(fmt::format("'{}' has no unit: expected a {}", text, dimension), units));
  const auto unit = std::ranges::find_if(units, [&](const Unit& u) { return u.name == name; });
  if (unit == units.end()) {
    return fail(
        bad_unit(fmt::format("'{}' is not a unit of {} in '{}'", name, dimension, text), units));
  }
  if (*number < 0 || std::signbit(*number))
    return fail(kOutOfRange, "{} '{}' is negative", dimension, text);
  const double value = *number * unit->multiply / unit->divide;
  if (!std::isfinite(value)) return fail(kOutOfRange, "{} '{}' is too large", dimension, text);
  return value;
}

template <class Q>
Result<Q> parse_as(std::string_view text, std::string_view dimension, std::span<const Unit> units) {
  TRY(const double value, parse_quantity(text, dimension, units));
  return Q(value);
}

/// Three significant digits without trailing zeros; whole numbers up to 9999 are kept whole.
std::string digits(double value) {
  const double magnitude = std::fabs(value);
  const int decimals = magnitude >= 100 ? 0 : magnitude >= 10 ? 1 : 2;
  std::string out = fmt::format("{:.{}f}", value, decimals);
  if (out.find('.') != std::string::npos) {
    while (out.back() == '0') out.pop_back();
    if (out.back() == '.') out.pop_back();
  }
  return out;
}

struct Scale {
  double at_least;
  double divide;
  std::string_view unit;
};

/// Scales are in falling order; the last one takes what remains. A value that would print as the
/// next unit's 1 does.
std::string print(double value, std::span<const Scale> scales) {
  if (!std::isfinite(value)) return fmt::format("{} {}", value, scales.back().unit);
  if (value == 0) return fmt::format("0 {}", scales.back().unit);
  const double magnitude = std::fabs(value);
  for (const Scale& scale : scales) {
    if (magnitude >= scale.at_least * 0.9995)
      return fmt::format("{} {}", digits(value / scale.divide), scale.unit);
  }
  const Scale& last = scales.back();
  const double scaled = value / last.divide;
  return std::fabs(scaled) >= 0.01 ? fmt::format("{} {}", digits(scaled), last.unit)
                                   : fmt::format("{:.3g} {}", scaled, last.unit);
}

constexpr std::array kTimeScales = {Scale{7200, 3600, "h"},  Scale{1, 1, "s"},
                                    Scale{1e-3, 1e-3, "ms"}, Scale{1e-6, 1e-6, "us"},
                                    Scale{1e-9, 1e-9, "ns"}, Scale{0, 1e-12, "ps"}};
constexpr std::array kByteScales = {Scale{0x1p40, 0x1p40, "TiB"}, Scale{0x1p30, 0x1p30, "GiB"},
                                    Scale{0x1p20, 0x1p20, "MiB"}, Scale{0x1p10, 0x1p10, "KiB"},
                                    Scale{1, 1, "B"}};

std::string print_decimal(double value, std::string_view unit) {
  const std::string peta = fmt::format("P{}", unit), tera = fmt::format("T{}", unit),
                    giga = fmt::format("G{}", unit), mega = fmt::format("M{}", unit),
                    kilo = fmt::format("k{}", unit);
  const std::array scales = {Scale{1e15, 1e15, peta}, Scale{1e12, 1e12, tera},
                             Scale{1e9, 1e9, giga},   Scale{1e6, 1e6, mega},
                             Scale{1e3, 1e3, kilo},   Scale{1, 1, unit}};
  return print(value, scales);
}

}  // namespace

std::string to_string(Seconds value) {
  if (value.raw() == 0) return "0 s";
  return print(value.raw(), kTimeScales);
}
std::string to_string(Bytes value) { return print(value.raw(), kByteScales); }
std::string to_string(BytesPerSecond value) { return print_decimal(value.raw(), "B/s"); }

Result<Seconds> parse_seconds(std::string_view text) {
  return parse_as<Seconds>(text, "time", kTimeUnits);
}
Result<Bytes> parse_bytes(std::string_view text) {
  return parse_as<Bytes>(text, "size", kSizeUnits);
}
Result<BytesPerSecond> parse_bandwidth(std::string_view text) {
  return parse_as<BytesPerSecond>(text, "bandwidth", kBandwidthUnits);
}
Result<FlopsPerSecond> parse_flops_rate(std::string_view text) {
  return parse_as<FlopsPerSecond>(text, "compute rate", kFlopsRateUnits);
}
Result<Watts> parse_power(std::string_view text) {
  return parse_as<Watts>(text, "power", kPowerUnits);
}

Result<Dollars> parse_dollars(std::string_view text) {
  return parse_as<Dollars>(text, "sum of money", kMoneyUnits);
}
Result<Count> parse_count(std::string_view text) {
  const std::string_view body = trim(text);
  const bool plain = !body.empty() && body.back() >= '0' && body.back() <= '9';
  if (!plain) return parse_as<Count>(text, "count", kCountUnits);
  constexpr std::array kOne = {Unit{"x"}};
  return parse_as<Count>(fmt::format("{}x", body), "count", kOne);
}

std::int64_t ceil_ps(Seconds t) {
  const double ps = t.raw() * 1e12;
  // also refuses NaN
  ORRERY_CHECK(std::fabs(ps) < 0x1p63, "{} s is outside simulated time", t.raw());
  const double whole = std::nearbyint(ps);
  if (std::fabs(ps - whole) <= std::fabs(ps) * 0x1p-51) return static_cast<std::int64_t>(whole);
  return static_cast<std::int64_t>(std::ceil(ps));
}

}  // namespace orrery::base
