#pragma once
/// Simulated time: int64 picoseconds. Sums are exact and associative, order is total, range is 106
/// days.
///
/// Seconds become picoseconds in one place, `SimTime::ceil`, which rounds up: a simulated event is
/// never early. Leaving the range is our bug and a CHECK, never a wrap.

#include <fmt/format.h>

#include <compare>
#include <cstdint>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/units.h"

namespace orrery::base {

inline constexpr std::int64_t kPicosecondsPerSecond = 1'000'000'000'000;

/// Smallest whole number of picoseconds not before `t`. A double that lies within 2^-51 (relative)
/// of a whole picosecond *is* that picosecond: 3.5e-6 s is 3'500'000 ps, not one more because
/// 3.5e-6 is not a binary fraction.
/// @pre t is finite and |t| < 106 days.
[[nodiscard]] std::int64_t ceil_ps(Seconds t);

/// An instant, or a span between two instants: both count picoseconds, and both add.
class SimTime {
 public:
  constexpr SimTime() = default;
  [[nodiscard]] static constexpr SimTime from_ps(std::int64_t ps) {
    SimTime t;
    t.ps_ = ps;
    return t;
  }
  [[nodiscard]] static SimTime ceil(Seconds t) { return from_ps(ceil_ps(t)); }
  [[nodiscard]] static constexpr SimTime max() {
    return from_ps(std::numeric_limits<std::int64_t>::max());
  }

  [[nodiscard]] constexpr std::int64_t ps() const { return ps_; }
  /// For reports; not exact above 2^53 ps (2.5 hours).
  [[nodiscard]] constexpr Seconds seconds() const {
    return Seconds(static_cast<double>(ps_) / 1e12);
  }

  constexpr auto operator<=>(const SimTime&) const = default;
  constexpr SimTime& operator+=(SimTime o) {
    ORRERY_CHECK(!__builtin_add_overflow(ps_, o.ps_, &ps_), "simulated time out of range");
    return *this;
  }
  constexpr SimTime& operator-=(SimTime o) {
    ORRERY_CHECK(!__builtin_sub_overflow(ps_, o.ps_, &ps_), "simulated time out of range");
    return *this;
  }
  friend constexpr SimTime operator+(SimTime a, SimTime b) { return a += b; }
  friend constexpr SimTime operator-(SimTime a, SimTime b) { return a -= b; }
  friend constexpr SimTime operator*(SimTime a, std::int64_t n) {
    std::int64_t product = 0;
    ORRERY_CHECK(!__builtin_mul_overflow(a.ps_, n, &product), "simulated time out of range");
    return from_ps(product);
  }
  friend constexpr SimTime operator*(std::int64_t n, SimTime a) { return a * n; }

 private:
  std::int64_t ps_ = 0;
};

/// As the same number of Seconds: "12.3 us".
[[nodiscard]] inline std::string to_string(SimTime t) { return to_string(t.seconds()); }

}  // namespace orrery::base

template <>
struct fmt::formatter<orrery::base::SimTime> : fmt::formatter<std::string> {
  template <class Context>
  auto format(orrery::base::SimTime t, Context& ctx) const {
    return fmt::formatter<std::string>::format(orrery::base::to_string(t), ctx);
  }
};
