#pragma once
/// Where in a Program a rank stands, for messages about it.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace orrery::executor {

struct Place {
  int rank = 0, stage = 0;
  std::int64_t step = 0;
  int layer = 0, micro_batch = 0;
  std::string_view operation = {};  // of the Program, which outlives it; empty: between steps
  std::size_t number = 0;           // of the operation, in issue order
};

inline std::string to_string(const Place& p) {
  if (p.operation.empty()) return fmt::format("rank {}, between steps", p.rank);
  return fmt::format("rank {} (stage {}), step {}, layer {}, micro-batch {}, operation '{}'",
                     p.rank, p.stage, p.step, p.layer, p.micro_batch, p.operation);
}

}  // namespace orrery::executor
