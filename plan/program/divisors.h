#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace orrery::plan {

/// Divisors of every number of `of`, ascending: the values a degree may take. Long lists are cut in
/// the middle. @pre not empty, all >= 1
std::string divisors(const std::vector<std::int64_t>& of);

/// The divisors of `n` next below and next above `value`: "4 or 8".
std::string nearest_divisors(std::int64_t n, std::int64_t value);

}  // namespace orrery::plan
