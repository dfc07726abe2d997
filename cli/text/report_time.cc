#include "cli/text/report_time.h"

#include <cstdlib>

#include <fmt/format.h>

namespace orrery::cli {

ReportTime::ReportTime(std::int64_t step_ps) {
  constexpr std::int64_t kDigits = 100'000;  // of five digits the last tick
  while (step_ps / tick_ps_ >= kDigits) tick_ps_ *= 10;
  struct Unit {
    const char* name;
    std::int64_t ps;
  };
  std::int64_t unit_ps = 1;
  for (const Unit u : {Unit{"ns", 1'000}, Unit{"us", 1'000'000}, Unit{"ms", 1'000'000'000},
                       Unit{"s", 1'000'000'000'000}}) {
    if (step_ps >= u.ps) {
      unit_ = u.name;
      unit_ps = u.ps;
    }
  }
  if (tick_ps_ > unit_ps) tick_ps_ = unit_ps;  // a step of more than a day keeps whole seconds
  per_unit_ = unit_ps / tick_ps_;
  for (std::int64_t t = per_unit_; t > 1; t /= 10) ++decimals_;
}

std::int64_t ReportTime::ticks(std::int64_t ps) const {
  return (ps + (ps < 0 ? -tick_ps_ : tick_ps_) / 2) / tick_ps_;
}

std::vector<std::int64_t> ReportTime::ticks(std::span<const std::int64_t> parts_ps) const {
  std::vector<std::int64_t> all;
  std::int64_t sum_ps = 0, before = 0;
  for (const std::int64_t ps : parts_ps) {
    sum_ps += ps;
    all.push_back(ticks(sum_ps) - before);
    before = ticks(sum_ps);
  }
  return all;
}

std::string ReportTime::show(std::int64_t ticks) const {
  const std::int64_t size = std::abs(ticks);
  const std::string sign = ticks < 0 ? "-" : "";
  if (decimals_ == 0) return fmt::format("{}{} {}", sign, size, unit_);
  return fmt::format("{}{}.{:0{}} {}", sign, size / per_unit_, size % per_unit_, decimals_, unit_);
}

std::string ReportTime::show_signed(std::int64_t ticks) const {
  return (ticks >= 0 ? "+" : "") + show(ticks);
}

}  // namespace orrery::cli
