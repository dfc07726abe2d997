#pragma once
/// Simulated time: int64 picoseconds, whose range is 106 days.
///
/// Seconds become picoseconds in one place, `ceil_ps`, which rounds up: a simulated event is never
/// early. Leaving the range is our bug and a CHECK, never a wrap.

#include <compare>
#include <cstdint>

#include "base/units.h"

namespace orrery::base {

inline constexpr std::int64_t kPicosecondsPerSecond = 1'000'000'000'000;

/// Smallest whole number of picoseconds not before `t`. A double that lies within 2^-51 (relative)
/// of a whole picosecond *is* that picosecond: 3.5e-6 s is 3'500'000 ps, not one more because
/// 3.5e-6 is not a binary fraction.
/// @pre t is finite and |t| < 106 days.
[[nodiscard]] std::int64_t ceil_ps(Seconds t);

/// An instant.
class SimTime {
 public:
  constexpr SimTime() = default;
  [[nodiscard]] static constexpr SimTime from_ps(std::int64_t ps) {
    SimTime t;
    t.ps_ = ps;
    return t;
  }
  [[nodiscard]] constexpr std::int64_t ps() const { return ps_; }
  constexpr auto operator<=>(const SimTime&) const = default;

 private:
  std::int64_t ps_ = 0;
};

}  // namespace orrery::base
