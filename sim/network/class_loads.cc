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
      case plan::OpKind::kCompute:
      case plan::OpKind::kCopy: return true;
      case plan::OpKind::kExchange:
        return std::ranges::all_of(
            op.legs, [&](const plan::Leg& leg) { return blocks.front().repeats(leg.peer_offset); });
      case plan::OpKind::kCollective:
        return !plan::states_messages(op) && blocks.front().repeats(program_.groups[op.group]);
    }
    return false;
  };
  for (const plan::Template& t : program_.templates)
    if (!std::ranges::all_of(t.ops, repeats)) return {};
  return blocks;
}

const PathLoads& ClassLoads::loads(costmodel::Pattern pattern, const plan::Group& group,
                                   std::uint32_t c) {
  const auto [at, fresh] = known_.try_emplace({pattern, group.size, group.stride, group.bits, c});
  if (!fresh) return at->second;
  const plan::RankClass& k = program_.classes[c];
  const costmodel::CollectivePaths& paths = cost_.communication().paths();
  return at->second = folded() ? paths.loads(pattern, group, blocks_[c])
                               : paths.loads(pattern, group, k.first_rank, k.count,
                                             costmodel::Senders::kOfClass);
}

costmodel::Transfer stated_transfer(const plan::Program& program, const costmodel::CostModel& cost,
                                    const plan::Op& op, const plan::Messages& all,
                                    std::span<const plan::Message> sent) {
  if (!all.all.empty()) {
    const costmodel::CollectivePrices& prices = cost.communication();
    return prices.exchange(1, cost.wire_bytes(program, op),
                           prices.paths().loads(sent, all.unit_bytes, all.units));
  }
  model::SegmentShape copy;
  copy.kind = model::SegmentKind::kSlice;
  copy.dtype = program.buffers[op.writes.front().buffer].dtype;
  for (const plan::BufferRef& ref : op.writes)
    copy.elements += program.buffers[ref.buffer].elements();
  return {.latency_ps = cost.segment_ps(copy, plan::Phase::kF)};
}

costmodel::Transfer ClassLoads::collective(const plan::Op& op, std::int64_t bytes,
                                           std::uint32_t c) {
  const plan::Group& group = program_.groups[op.group];
  if (group.size <= 1) return {};
  if (plan::states_messages(op)) {
    const plan::Messages m = plan::messages_of(program_, op, program_.classes[c]);
    return stated_transfer(program_, cost_, op, m, m.all);
  }
  return priced(op, bytes,
                [&](costmodel::Pattern p) -> const PathLoads& { return loads(p, group, c); });
}

costmodel::Transfer ClassLoads::collective(const plan::Op& op, std::int64_t bytes, std::uint32_t c,
                                           costmodel::Ranks part) {
  const plan::Group& group = program_.groups[op.group];
  if (group.size <= 1) return {};
  return priced(op, bytes,
                [&](costmodel::Pattern p) -> const PathLoads& { return loads(p, group, c, part); });
}

const PathLoads& ClassLoads::loads(costmodel::Pattern pattern, const plan::Group& group,
                                   std::uint32_t c, costmodel::Ranks part) {
  const Key key{pattern, group.size, group.stride, group.bits, c};
  const auto [at, fresh] = known_of_parts_.try_emplace({key, part.first, part.count});
  const plan::RankClass& k = program_.classes[c];
  if (fresh)
    at->second = cost_.communication().paths().loads_of_part(pattern, group, part.first, part.count,
                                                             k.first_rank, k.count);
  return at->second;
}

template <class LoadsOf>
costmodel::Transfer ClassLoads::priced(const plan::Op& op, std::int64_t bytes,
                                       const LoadsOf& loads_of) const {
  const plan::Group& group = program_.groups[op.group];
  const costmodel::CollectivePrices& prices = cost_.communication();
  const costmodel::Pattern usual = costmodel::CollectivePrices::usual_pattern(op.collective);
  const costmodel::RunsAs how =
      prices.runs_as(op.collective, group, bytes, loads_of(usual), op.pieces > 1);
  return prices.collective(op.collective, group, bytes, how, loads_of(how.pattern));
}

costmodel::Transfer ClassLoads::exchange(std::uint32_t c, int peer_offset, std::int64_t bytes) {
  if (peer_offset == 0) return {};
  const costmodel::CollectivePrices& prices = cost_.communication();
  const auto [at, fresh] = known_.try_emplace({costmodel::Pattern::kShift, 0, peer_offset, 0, c});
  const plan::RankClass& k = program_.classes[c];
  if (fresh)
    at->second = folded() ? prices.paths().loads(peer_offset, blocks_[c])
                          : prices.paths().loads(k.first_rank, k.count, peer_offset);
  return prices.exchange(peer_offset, bytes, at->second);
}

}  // namespace orrery::sim
