#pragma once
/// \file
/// One rank of a simulated step by itself: what its replay on one device is held against
/// (executor/runtime/replay.h).
///
/// In a replay no peer is waited for, and communication takes the time that it takes in the
/// simulated step from when its peers have come. So
///
///     t(op)     = price                              of computation, by itself
///                 end - start in the simulated step  of communication
///     start(op) = max(end of the one before on its stream, ends of what it depends on)
///
/// where communication overlaps computation. Where it does not, an operation also waits for all
/// that were issued before it, but for sends.
#include <cstdint>
#include <map>
#include <vector>

namespace orrery::sim {

struct ClassOutcome;
struct PreparedClass;
struct PreparedStep;

struct RankAlone {
  std::vector<std::int64_t> op_ps;                    // t, in issue order
  std::vector<bool> computes;                         // [op]
  std::int64_t compute_ps = 0, communication_ps = 0;  // sums of t
  std::int64_t step_ps = 0;                           // the last end
};
RankAlone rank_alone(const PreparedClass& rank_class, const ClassOutcome& outcome, bool overlaps);

/// An operation that computes, of all layers and micro-batches.
struct ComputeKey {
  std::uint32_t rank_class = 0, template_id = 0, index = 0;
  auto operator<=>(const ComputeKey&) const = default;
};
/// How long computation takes by itself, in ps; of what is not there the price stands.
using ComputeTimes = std::map<ComputeKey, std::int64_t>;
/// Puts them in place of prices.
void set_compute(PreparedStep& step, const ComputeTimes& times);

}  // namespace orrery::sim
