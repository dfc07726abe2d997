#pragma once
#include <cstdint>
#include <string_view>

namespace orrery::sim {

/// What a picosecond of a rank went into. Compute hides communication, communication hides waiting:
/// an instant with several things running counts for the first of them in this order.
enum class TimePart : std::uint8_t {
  kForward,
  kBackward,
  kRecompute,
  kOptimizer,
  kTensor,
  kContext,
  kExpert,
  kData,
  kPipeline,
  kBubble,
};
inline constexpr int kTimeParts = 10;
std::string_view to_string(TimePart part);  // "forward", ..., "bubble"

}  // namespace orrery::sim
