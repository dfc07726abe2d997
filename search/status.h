#pragma once
#include <cstdint>
#include <string_view>

namespace orrery::search {

/// kBudget: the best plan found with a certified gap: the effort limit was reached, the memory of
/// some problem was hard to decide, or (GPipe alone; a late stage whose update outlasts the first
/// stage) the search's form of the cost is a lower bound of the closed form there.
enum class Status : std::uint8_t { kOptimal, kInfeasible, kBudget };
std::string_view to_string(Status s);

}  // namespace orrery::search
