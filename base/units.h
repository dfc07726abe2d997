#pragma once
/// Quantities with dimensions: a double tagged with s^T * byte^B * flop^F.
///
///   Bytes / BytesPerSecond = Seconds     Flops / FlopsPerSecond = Seconds
///   Flops / Bytes = FlopsPerByte
///
/// A wrong formula does not compile. Conventions: k, M, G, T, P are powers of 1000; Ki, Mi, Gi, Ti
/// powers of 1024; "B" is a byte, "b" a bit; FLOP is an amount of work and FLOP/s a rate. Units are
/// compulsory at input.

#include <fmt/format.h>

#include <compare>
#include <string>
#include <string_view>

#include "base/result.h"

namespace orrery::base {

/// Zero-cost: same size as double. Integers are exact up to 2^53 (8 PiB in bytes).
template <int T, int B, int F>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(double si) : si_(si) {}
  /// Value in the SI base (s, byte, FLOP and their products). The only way out.
  [[nodiscard]] constexpr double raw() const { return si_; }

  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity o) {
    si_ += o.si_;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity o) {
    si_ -= o.si_;
    return *this;
  }
  constexpr Quantity& operator*=(double k) {
    si_ *= k;
    return *this;
  }
  constexpr Quantity& operator/=(double k) {
    si_ /= k;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return a += b; }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return a -= b; }
  friend constexpr Quantity operator-(Quantity a) { return Quantity{-a.si_}; }
  friend constexpr Quantity operator*(Quantity a, double k) { return Quantity{a.si_ * k}; }
  friend constexpr Quantity operator*(double k, Quantity a) { return Quantity{k * a.si_}; }
  friend constexpr Quantity operator/(Quantity a, double k) { return Quantity{a.si_ / k}; }

 private:
  double si_ = 0.0;
};

template <int T, int B, int F>
struct Collapse {
  using type = Quantity<T, B, F>;
};
template <>
struct Collapse<0, 0, 0> {
  using type = double;
};  // a ratio of like quantities is a plain double

template <int T1, int B1, int F1, int T2, int B2, int F2>
constexpr auto operator*(Quantity<T1, B1, F1> a, Quantity<T2, B2, F2> b) {
  return typename Collapse<T1 + T2, B1 + B2, F1 + F2>::type(a.raw() * b.raw());
}
template <int T1, int B1, int F1, int T2, int B2, int F2>
constexpr auto operator/(Quantity<T1, B1, F1> a, Quantity<T2, B2, F2> b) {
  return typename Collapse<T1 - T2, B1 - B2, F1 - F2>::type(a.raw() / b.raw());
}

using Seconds = Quantity<1, 0, 0>;
using Bytes = Quantity<0, 1, 0>;
using Flops = Quantity<0, 0, 1>;  ///< an amount of work, not a rate
using BytesPerSecond = Quantity<-1, 1, 0>;
using FlopsPerSecond = Quantity<-1, 0, 1>;
using FlopsPerByte = Quantity<0, -1, 1>;  ///< arithmetic intensity

/// A number of something that no formula mixes with the dimensions above.
template <class Tag>
class Amount {
 public:
  constexpr Amount() = default;
  constexpr explicit Amount(double amount) : amount_(amount) {}
  [[nodiscard]] constexpr double raw() const { return amount_; }
  constexpr auto operator<=>(const Amount&) const = default;

 private:
  double amount_ = 0.0;
};
using Watts = Amount<struct WattsTag>;      ///< power: what a device may draw
using Dollars = Amount<struct DollarsTag>;  ///< money
using Count = Amount<struct CountTag>;      ///< how many, of tokens say

/// `using namespace orrery::base::literals;` gives 3.5_us, 36_GiB, 200_Gbps, 312_TFLOPS. Fractions
/// divide by a power of ten, so 3.5_us is the double nearest to 3.5e-6.
inline namespace literals {
#define ORRERY_UNIT_LITERAL_(Type, suffix, multiply, divide) \
  constexpr Type operator""_##suffix(long double v) {        \
    return Type(double(v) * (multiply) / (divide));          \
  }                                                          \
  constexpr Type operator""_##suffix(unsigned long long v) { \
    return Type(double(v) * (multiply) / (divide));          \
  }
ORRERY_UNIT_LITERAL_(Seconds, s, 1.0, 1.0)
ORRERY_UNIT_LITERAL_(Seconds, ms, 1.0, 1e3)
ORRERY_UNIT_LITERAL_(Seconds, us, 1.0, 1e6)
ORRERY_UNIT_LITERAL_(Seconds, ns, 1.0, 1e9)
ORRERY_UNIT_LITERAL_(Bytes, B, 1.0, 1.0)
ORRERY_UNIT_LITERAL_(Bytes, KiB, 1024.0, 1.0)
ORRERY_UNIT_LITERAL_(Bytes, MiB, 1048576.0, 1.0)
ORRERY_UNIT_LITERAL_(Bytes, GiB, 1073741824.0, 1.0)
ORRERY_UNIT_LITERAL_(BytesPerSecond, GBps, 1e9, 1.0)
ORRERY_UNIT_LITERAL_(BytesPerSecond, Gbps, 1e9, 8.0)
ORRERY_UNIT_LITERAL_(FlopsPerSecond, GFLOPS, 1e9, 1.0)
ORRERY_UNIT_LITERAL_(FlopsPerSecond, TFLOPS, 1e12, 1.0)
#undef ORRERY_UNIT_LITERAL_
}  // namespace literals

/// For people: three significant digits and the unit that suits ("4.19 s", "36 GiB", "25 GB/s").
/// Not for files: write numbers in SI there.
[[nodiscard]] std::string to_string(Seconds value);
[[nodiscard]] std::string to_string(Bytes value);
[[nodiscard]] std::string to_string(BytesPerSecond value);

/// Text to quantity. Grammar: NUMBER [spaces] UNIT, the unit compulsory and case-sensitive, the
/// number finite and not negative. Errors: kBadUnit with a hint that lists the units; kOutOfRange
/// when negative or not finite. Units of time: ps ns us ms s min h d.
[[nodiscard]] Result<Seconds> parse_seconds(std::string_view text);
/// Units of size: B kB MB GB TB KiB MiB GiB TiB.
[[nodiscard]] Result<Bytes> parse_bytes(std::string_view text);
/// Units of bandwidth: any unit of size over "/s"; bits as b/s kb/s Mb/s Gb/s Tb/s, also written
/// Mbps Gbps Tbps.
[[nodiscard]] Result<BytesPerSecond> parse_bandwidth(std::string_view text);
/// Units of compute rate: FLOP/s MFLOP/s GFLOP/s TFLOP/s PFLOP/s, also written GFLOPS TFLOPS
/// PFLOPS.
[[nodiscard]] Result<FlopsPerSecond> parse_flops_rate(std::string_view text);
/// Units of power: W kW.
[[nodiscard]] Result<Watts> parse_power(std::string_view text);
/// Units of money: $ K$ M$ B$ (thousands, millions, billions of dollars).
[[nodiscard]] Result<Dollars> parse_dollars(std::string_view text);
/// Units of counts: K M B T (10^3, 10^6, 10^9, 10^12), or none.
[[nodiscard]] Result<Count> parse_count(std::string_view text);

}  // namespace orrery::base

template <int T, int B, int F>
struct fmt::formatter<orrery::base::Quantity<T, B, F>> : fmt::formatter<std::string> {
  template <class Context>
  auto format(orrery::base::Quantity<T, B, F> q, Context& ctx) const {
    return fmt::formatter<std::string>::format(orrery::base::to_string(q), ctx);
  }
};
