#include "sim/network/class_loads.h"

#include <algorithm>

#include "base/numbers.h"

namespace orrery::sim {

using costmodel::LinkLoad;
using costmodel::PathLoads;

ClassLoads::ClassLoads(const plan::Program& program, const costmodel::CostModel& cost, bool fold)
    : program_(program), cost_(cost), folded_(fold && foldable()) {}

bool ClassLoads::foldable() const {
  const topologies::Topology& topology = cost_.topology();
  if (!topology.host_copies() || program_.classes.empty()) return false;
  const int count = program_.classes.front().count;
  if (count % as_int(topology.devices_per_host()) != 0) return false;
  const auto block = [&](const plan::RankClass& k) {
    return k.count == count && k.first_rank % count == 0;
  };
  const auto regular = [&](const plan::Op& op) { return foldable(op, count); };
  return std::ranges::all_of(program_.classes, block) &&
         std::ranges::all_of(program_.templates, [&](const plan::Template& t) {
           return std::ranges::all_of(t.ops, regular);
         });
}

bool ClassLoads::foldable(const plan::Op& op, int count) const {
  switch (op.kind) {
    case plan::OpKind::kCompute: return true;
    case plan::OpKind::kExchange:
      return std::ranges::all_of(
          op.legs, [&](const plan::Leg& leg) { return leg.peer_offset % count == 0; });
    case plan::OpKind::kCollective: break;
  }
  const plan::Group& group = program_.groups[op.group];
  if (group.size <= 1) return true;
  if (op.collective == plan::Collective::kBroadcast) return false;
  const int span = group.size * group.stride, host = as_int(cost_.topology().devices_per_host());
  return group.stride % count == 0 || (count % span == 0 && (span % host == 0 || host % span == 0));
}

/// From the first class to class c.
PathLoads ClassLoads::shifted(PathLoads loads, std::uint32_t c) const {
  const int ranks = program_.classes[c].first_rank - program_.classes.front().first_rank;
  const std::uint32_t hosts = as_u32(ranks) / cost_.topology().devices_per_host();
  for (LinkLoad& load : loads.links)
    load.link = topologies::LinkId(load.link.raw() +
                                   hosts * cost_.topology().host_copies()->links_per_host);
  return loads;
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
  if (!folded_) return loads = prices.loads(op, group, k.first_rank, k.count);
  const int host = as_int(cost_.topology().devices_per_host());
  if (group.stride % k.count == 0) return loads = prices.loads(op, group, k.first_rank, host);
  if (c > 0) return loads = shifted(collective(op, group, 0), c);
  loads = prices.loads(op, group, k.first_rank, host);
  const std::uint32_t per_host = cost_.topology().host_copies()->links_per_host;
  const std::uint32_t first = as_u32(k.first_rank / host) * per_host;
  std::map<topologies::LinkId, std::int64_t> sums;
  for (const LinkLoad& load : loads.links)
    sums[topologies::LinkId(first + load.link.raw() % per_host)] += load.flows;
  loads.links.clear();
  for (const auto& [link, flows] : sums) loads.links.push_back({link, flows});
  return loads;
}

const PathLoads& ClassLoads::exchange(std::uint32_t c, int peer_offset) {
  const auto [at, fresh] = known_.try_emplace({Pattern::kExchange, 0, peer_offset, c});
  if (!fresh) return at->second;
  const plan::RankClass& k = program_.classes[c];
  const int ranks = folded_ ? as_int(cost_.topology().devices_per_host()) : k.count;
  return at->second = cost_.communication().loads(k.first_rank, ranks, peer_offset);
}

}  // namespace orrery::sim
