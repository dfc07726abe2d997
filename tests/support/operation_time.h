#pragma once
#include <algorithm>

#include "costmodel/cost_model.h"

namespace orrery::tests {

/// Time of any operation of a class alone on the machine (a collective with all members of its
/// groups, an exchange with its longest leg).
inline std::int64_t op_ps(const costmodel::CostModel& cost, const plan::Program& program,
                          const plan::Op& op, int first_rank, int rank_count) {
  if (op.kind == plan::OpKind::kCompute)
    return cost.segment_ps(program.segments[op.segment], op.phase);
  if (op.kind == plan::OpKind::kCollective) {
    return cost.communication()
        .collective(op.collective, program.groups[op.group], op.bytes, first_rank, rank_count,
                    costmodel::Senders::kWholeGroups)
        .duration_ps();
  }
  if (op.kind == plan::OpKind::kCopy)
    return cost.copy_ps(plan::copies_out(op), op.bytes, first_rank, rank_count).value();
  std::int64_t longest = 0;  // legs are posted at once
  for (const auto& leg : op.legs) {
    const std::int64_t bytes = program.buffers[leg.buffer.buffer].bytes();
    const int sender = leg.send ? first_rank : first_rank + leg.peer_offset;
    const int offset = leg.send ? leg.peer_offset : -leg.peer_offset;
    longest = std::max(longest, cost.exchange(sender, rank_count, offset, bytes).duration_ps());
  }
  return longest;
}

/// Closed-form time of a collective, by the paths that a search finds once.
inline std::int64_t closed_ps(const costmodel::CollectivePrices& prices, plan::Collective op,
                              const plan::Group& group, std::int64_t bytes, int first_rank,
                              int rank_count) {
  const auto paths = [&](costmodel::Pattern pattern) {
    return prices.paths().summary(pattern, group, first_rank, rank_count);
  };
  const costmodel::RunsAs how =
      prices.runs_as(op, group, bytes, paths(costmodel::CollectivePrices::usual_pattern(op)));
  return prices.duration_ps(op, group, bytes, how, paths(how.pattern));
}

}  // namespace orrery::tests
