#pragma once
/// Exact progress of an activity whose speed changes.
///
///   remaining(t) = remaining(t0) - speed * (t - t0)
///   end = t0 + ceil(remaining(t0) / speed)
///
/// Time is whole picoseconds, work and speed are whole (128-bit) units of the caller's choice, so a
/// change of speed neither loses nor gains work: the only rounding is the last one, up to the
/// picosecond in which the work is done. An activity that never changes speed therefore ends at
/// ceil(work / speed), whatever happened around it.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/check.h"

namespace orrery::sim::kernel {

__extension__ typedef __int128 Int128;

/// ppm millionths of a time, rounded up as all prices are. @pre both >= 0.
inline std::int64_t scaled_ps(std::int64_t ps, std::int64_t ppm) {
  constexpr std::int64_t kMillion = 1'000'000;
  std::int64_t product = 0;
  if (!__builtin_mul_overflow(ps, ppm, &product) &&
      product <= std::numeric_limits<std::int64_t>::max() - kMillion)
    return (product + kMillion - 1) / kMillion;
  return static_cast<std::int64_t>((static_cast<Int128>(ps) * ppm + kMillion - 1) / kMillion);
}

class RemainingWork {
 public:
  RemainingWork() = default;
  /// @pre work >= 0.
  RemainingWork(std::int64_t now_ps, Int128 work) : remaining_(work), since_ps_(now_ps) {}

  /// Work done until now counts at the old speed. @pre now_ps is not before the last call; speed >
  /// 0 unless nothing is left.
  void set_speed(std::int64_t now_ps, Int128 speed_per_ps) {
    remaining_ = remaining(now_ps);
    since_ps_ = now_ps;
    speed_ = speed_per_ps;
  }
  /// @pre now_ps is not before the last call of set_speed().
  // 0 inside its last, partly used picosecond
  [[nodiscard]] Int128 remaining(std::int64_t now_ps) const {
    return std::max<Int128>(remaining_ - speed_ * (now_ps - since_ps_), 0);
  }
  /// When the work is done at the present speed.
  [[nodiscard]] std::int64_t end_ps() const {
    if (remaining_ == 0) return since_ps_;
    ORRERY_CHECK(speed_ > 0, "an activity with work left has no speed");
    return since_ps_ + static_cast<std::int64_t>((remaining_ + speed_ - 1) / speed_);
  }

 private:
  Int128 remaining_ = 0;
  Int128 speed_ = 0;
  std::int64_t since_ps_ = 0;
};

}  // namespace orrery::sim::kernel
