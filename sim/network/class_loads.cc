#include "sim/network/class_loads.h"

#include <algorithm>

#include "base/numbers.h"

namespace orrery::sim {

using costmodel::PathLoads;
using costmodel::RankBlocks;

ClassLoads::ClassLoads(const plan::Program& program, const costmodel::CostModel& cost, bool fold)
    : program_(program), cost_(cost) {
  if (fold) blocks_ = blocks();
}

/// Blocks of every class, where the first says all of each; else nothing.
std::vector<RankBlocks> ClassLoads::blocks() const {
  std::vector<RankBlocks> blocks;
  for (const plan::RankClass& k : program_.classes) {
    const auto found = RankBlocks::of(cost_.topology(), k.first_rank, k.count);
    if (!found || k.count != program_.classes.front().count) return {};
    blocks.push_back(*found);
  }
  const auto repeats = [&](const plan::Op& op) {
    switch (op.kind) {
      case plan::OpKind::kCompute: return true;
      case plan::OpKind::kExchange:
        return std::ranges::all_of(
            op.legs, [&](const plan::Leg& leg) { return blocks.front().repeats(leg.peer_offset); });
      case plan::OpKind::kCollective:
        return blocks.front().repeats(op.collective, program_.groups[op.group]);
    }
    return false;
  };
  for (const plan::Template& t : program_.templates)
    if (!std::ranges::all_of(t.ops, repeats)) return {};
  return blocks;
}

const PathLoads& ClassLoads::collective(plan::Collective op, const plan::Group& group,
                                        std::uint32_t c) {
  const Pattern pattern = op == plan::Collective::kAllToAll       ? Pattern::kAllToAll
                          : op == plan::Collective::kBroadcast    ? Pattern::kBroadcast
                          : op == plan::Collective::kPointToPoint ? Pattern::kShift
                                                                  : Pattern::kRings;
  const auto [at, fresh] = known_.try_emplace({pattern, group.size, group.stride, c});
  PathLoads& loads = at->second;
  if (!fresh) return loads;
  const plan::RankClass& k = program_.classes[c];
  const costmodel::CollectivePrices& prices = cost_.communication();
  return loads = folded() ? prices.loads(op, group, blocks_[c])
                          : prices.loads(op, group, k.first_rank, k.count);
}

const PathLoads& ClassLoads::exchange(std::uint32_t c, int peer_offset) {
  const auto [at, fresh] = known_.try_emplace({Pattern::kExchange, 0, peer_offset, c});
  if (!fresh) return at->second;
  const plan::RankClass& k = program_.classes[c];
  const costmodel::CollectivePrices& prices = cost_.communication();
  return at->second = folded() ? prices.loads(peer_offset, blocks_[c])
                               : prices.loads(k.first_rank, k.count, peer_offset);
}

}  // namespace orrery::sim
