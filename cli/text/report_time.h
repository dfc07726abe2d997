#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace orrery::cli {

/// Times of one report in one unit with as many digits, so that what is shown adds up: differences
/// are taken and parts are summed as shown, in ticks. A step of `step_ps` has five digits: "6.4421
/// s", "62.312 ms". @pre step_ps > 0.
class ReportTime {
 public:
  explicit ReportTime(std::int64_t step_ps);

  /// Nearest tick.
  std::int64_t ticks(std::int64_t ps) const;
  /// Parts in ticks, each within one tick of its own, that add up to the ticks of their sum.
  std::vector<std::int64_t> ticks(std::span<const std::int64_t> parts_ps) const;
  /// "0.0408 s"; signed: "+0.0408 s".
  std::string show(std::int64_t ticks) const;
  std::string show_signed(std::int64_t ticks) const;

 private:
  std::int64_t tick_ps_ = 1;
  std::int64_t per_unit_ = 1;  // ticks of the unit
  int decimals_ = 0;
  const char* unit_ = "ps";
};

}  // namespace orrery::cli
