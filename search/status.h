#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/numbers.h"

namespace orrery::search {

/// kBudget: the best plan found with a certified gap: the effort limit was reached, the memory of
/// some problem was hard to decide, or (GPipe alone; a late stage whose update outlasts the first
/// stage) the search's form of the cost is a lower bound of the closed form there.
enum class Status : std::uint8_t { kOptimal, kInfeasible, kBudget };
std::string_view to_string(Status s);

/// As reasons and relaxations print them.
inline std::string gib(std::int64_t bytes) {
  return fmt::format("{:.2f} GiB", real(bytes) / (1 << 30));
}
inline std::string seconds(std::int64_t ps) { return fmt::format("{:.4f} s", real(ps) / 1e12); }

}  // namespace orrery::search
