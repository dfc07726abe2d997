#include "costmodel/collectives/collective_paths.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "base/sim_time.h"

namespace orrery::costmodel {
namespace {

void check_ranks(int first_rank, int rank_count, const topologies::Topology& topology) {
  ORRERY_CHECK(rank_count > 0, "{} ranks", rank_count);
  ORRERY_CHECK(first_rank >= 0 && first_rank + rank_count <= as_int(topology.device_count()),
               "ranks {} .. {} of {}", first_rank, first_rank + rank_count,
               topology.device_count());
}

/// On more hosts, less evenly, with more members on one: the same whatever the order of groups.
bool is_wider(const GroupShape& a, const GroupShape& b) {
  const auto width = [](const GroupShape& s) {
    return std::tuple(s.hosts, !s.uniform(), s.largest_host);
  };
  return width(a) > width(b);
}

bool in_switch(Pattern pattern) {
  return pattern == Pattern::kSwitch || pattern == Pattern::kSwitchTrees;
}

}  // namespace

/// No flows between paths. Pages of links that no path crosses are never touched.
std::int64_t* CollectivePaths::crossings() const {
  struct Free {
    void operator()(std::int64_t* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<std::int64_t[], Free> crossings;
  thread_local std::size_t size = 0;
  if (const std::size_t links = topology_->links().size(); size < links) {
    crossings.reset(static_cast<std::int64_t*>(std::calloc(links, sizeof(std::int64_t))));
    ORRERY_CHECK(crossings != nullptr, "no memory for {} links", links);
    size = links;
  }
  return crossings.get();
}

void CollectivePaths::add_route(int from, int to, std::int64_t flows, Paths& paths) const {
  const auto a = as_u32(from), b = as_u32(to);
  std::vector<topologies::LinkId>& route = paths.route;
  route.clear();
  topology_->append_route(a, b, route);
  ++paths.routes;
  if (topology_->detoured(a, b))
    paths.detours.insert(paths.detours.end(), route.begin(), route.end());
  std::int64_t latency = 0, *all = crossings();
  for (const auto link : route) {
    latency += base::ceil_ps(topology_->link(link).latency);
    const std::int64_t weight = paths.blocks != nullptr ? paths.blocks->weight(from, link) : 1;
    if (weight == 0) continue;
    const auto at = paths.inside ? paths.blocks->in_first_block(link) : link;
    if (all[at.raw()] == 0) paths.links.push_back({at, 0});
    all[at.raw()] += weight * flows;
  }
  paths.alpha_ps = std::max(paths.alpha_ps, latency);
}

std::shared_ptr<const std::vector<Places>> CollectivePaths::cycles_of(const Members& members,
                                                                      int count) const {
  if (count < 3 || library_ == nullptr) return nullptr;  // two members have one order
  const int per_host = as_int(topology_->devices_per_host());
  std::vector<int> ranks, places;
  for (int i = 0; i < count; ++i) {
    ranks.push_back(members[i]);
    places.push_back(ranks.back() % per_host);
  }
  const std::scoped_lock lock(cycles_->mutex);
  const auto [known, fresh] = cycles_->by_members.try_emplace(std::move(places));
  if (fresh)
    known->second = std::make_shared<const std::vector<Places>>(host_cycles(*topology_, ranks));
  return known->second;
}

GroupSpread CollectivePaths::spread_of(const Members& members) const {
  std::vector<int> first_of_host{0};  // host-major ranks: members of one host are neighbours
  for (int i = 1; i < members.size; ++i)
    if (!topology_->same_host(as_u32(members[i - 1]), as_u32(members[i])))
      first_of_host.push_back(i);
  first_of_host.push_back(members.size);
  const int count = first_of_host[1];
  return costmodel::spread_of(std::move(first_of_host), cycles_of(members, count));
}

void CollectivePaths::find_links(const Members& members, GroupShape& shape) const {
  if (library_ == nullptr) return;
  Neighbours found;
  for (int i = 1; i < members.size && !(found.in_host && found.across); ++i) {
    const int before = members[i - 1], rank = members[i];
    if (!topology_->same_host(as_u32(before), as_u32(rank)))
      found.across = {members[0], rank};
    else if (!found.in_host)
      found.in_host = {before, rank};
  }
  costmodel::find_links(*topology_, *library_, found, shape);
}

void CollectivePaths::add_spread(const Members& members, Paths& paths, Spreads& spreads) const {
  GroupSpread spread = spread_of(members);
  const bool widest = spreads.empty() || is_wider(spread.shape, paths.shape);
  if (widest || in_switch(paths.pattern)) find_links(members, spread.shape);
  if (widest) paths.shape = spread.shape;
  spreads.push_back({members, std::move(spread)});
}

/// Of the groups that hold one of the ranks.
CollectivePaths::Spreads CollectivePaths::spreads_of(const plan::Group& group, int first_rank,
                                                     int rank_count, Paths& paths) const {
  Spreads spreads;
  for (int rank = first_rank; rank < first_rank + rank_count; ++rank) {
    // the group's first of these ranks
    const int base = group.base(rank), i = group.index(rank);
    if (i > 0 && group.member(base, i - 1) >= first_rank) continue;
    add_spread({.base = base, .size = group.size, .group = &group}, paths, spreads);
  }
  return spreads;
}

void CollectivePaths::add_sends(const Spreads& spreads, int first_rank, int rank_count,
                                Paths& paths) const {
  const auto pattern_of = [&](const GroupSpread& spread) {
    return in_switch(paths.pattern) && !spread.shape.uniform() ? Pattern::kRings : paths.pattern;
  };
  for (const auto& [members, spread] : spreads)
    paths.units = std::lcm(paths.units, units_of(pattern_of(spread), spread.shape));
  std::vector<MemberFlows> sends;
  for (const auto& [members, spread] : spreads) {
    const Pattern pattern = pattern_of(spread);
    const std::int64_t times = paths.units / units_of(pattern, spread.shape);
    for (int i = 0; i < members.size; ++i) {
      const int rank = members[i], place = rank - first_rank;
      if (place < 0 || place >= rank_count) continue;
      sends.clear();
      append_sends(pattern, spread, i, sends);
      for (const auto& [to, flows] : sends) add_route(rank, members[to], flows * times, paths);
    }
  }
}

/// What these ranks send, or all members of their groups.
void CollectivePaths::add_groups(const plan::Group& group, int first_rank, int rank_count,
                                 bool all_members, Paths& paths) const {
  const Spreads spreads = spreads_of(group, first_rank, rank_count, paths);
  if (all_members)
    add_sends(spreads, 0, as_int(topology_->device_count()), paths);
  else
    add_sends(spreads, first_rank, rank_count, paths);
}

void CollectivePaths::add_exchange(int first_rank, int rank_count, int peer_offset,
                                   Paths& paths) const {
  Neighbours members;
  for (int rank = first_rank; rank < first_rank + rank_count; ++rank)
    add_message(rank, rank + peer_offset, 1, members, paths);
  find_exchange_links(members, paths);
}

void CollectivePaths::add_message(int from, int to, std::int64_t flows, Neighbours& members,
                                  Paths& paths) const {
  add_route(from, to, flows, paths);
  (topology_->same_host(as_u32(from), as_u32(to)) ? members.in_host : members.across) = {from, to};
}

void CollectivePaths::find_exchange_links(const Neighbours& members, Paths& paths) const {
  paths.pattern = Pattern::kShift;
  paths.shape.size = 2;
  if (members.across) paths.shape.hosts = 2;
  if (library_ != nullptr) costmodel::find_links(*topology_, *library_, members, paths.shape);
}

void CollectivePaths::count(Paths& paths) const {
  std::int64_t* all = crossings();
  for (LinkLoad& l : paths.links) l.flows = std::exchange(all[l.link.raw()], 0);
}

void CollectivePaths::find_narrowest(std::span<const LinkLoad> links, PathSummary& s) const {
  s.in_hosts = s.fabric = {};
  // Of equal shares the one of fewest flows, whatever the order of the links.
  const auto narrower = [](const NarrowestLink& a, const NarrowestLink& b) {
    const auto share = static_cast<__int128>(a.bytes_per_second) * b.flows,
               other = static_cast<__int128>(b.bytes_per_second) * a.flows;
    return b.flows == 0 || share < other || (share == other && a.flows < b.flows);
  };
  for (const LinkLoad& crossed : links) {
    const topologies::Link& link = topology_->link(crossed.link);
    const NarrowestLink here{link.bytes_per_second, crossed.flows};
    if (!narrower(here, s.in_hosts) && !narrower(here, s.fabric)) continue;  // most are alike
    NarrowestLink& least = topology_->in_host(link) ? s.in_hosts : s.fabric;
    if (narrower(here, least)) least = here;
  }
}

PathLoads CollectivePaths::counted(Paths paths) const {
  count(paths);
  find_narrowest(paths.links, paths);
  std::ranges::sort(paths.links, {}, &LinkLoad::link);
  std::ranges::sort(paths.detours);
  return paths;
}

PathSummary CollectivePaths::summed(Paths paths) const {
  count(paths);
  find_narrowest(paths.links, paths);
  return paths;
}

PathLoads CollectivePaths::loads(Pattern pattern, const plan::Group& group, int first_rank,
                                 int rank_count, Senders senders) const {
  check_ranks(first_rank, rank_count, *topology_);
  Paths paths;
  paths.pattern = pattern;
  add_groups(group, first_rank, rank_count, senders == Senders::kWholeGroups, paths);
  return counted(std::move(paths));
}

PathLoads CollectivePaths::loads_of_part(Pattern pattern, const plan::Group& group, int first_rank,
                                         int rank_count, int all_first, int all_count) const {
  PathLoads part = loads(pattern, group, first_rank, rank_count, Senders::kOfClass);
  const PathLoads all = loads(pattern, group, all_first, all_count, Senders::kOfClass);
  for (LinkLoad& l : part.links)
    l.flows = std::ranges::lower_bound(all.links, l.link, {}, &LinkLoad::link)->flows;
  part.units = all.units;
  part.routes += all.routes;
  find_narrowest(part.links, part);
  return part;
}

PathLoads CollectivePaths::loads(int first_rank, int rank_count, int peer_offset) const {
  Paths paths;
  add_exchange(first_rank, rank_count, peer_offset, paths);
  return counted(std::move(paths));
}

PathLoads CollectivePaths::loads(std::span<const plan::Message> messages, std::int64_t unit_bytes,
                                 std::int64_t units) const {
  Paths paths;
  Neighbours members;
  for (const plan::Message& m : messages)
    add_message(m.from, m.to, m.bytes / unit_bytes, members, paths);
  find_exchange_links(members, paths);
  paths.units = units;
  return counted(std::move(paths));
}

PathLoads CollectivePaths::loads(Pattern pattern, const plan::Group& group,
                                 const RankBlocks& blocks) const {
  Paths paths;
  paths.pattern = pattern;
  paths.blocks = &blocks;
  paths.inside = blocks.inside(group);
  add_groups(group, blocks.first_rank(), blocks.ranks(), false, paths);
  return counted(std::move(paths));
}

PathLoads CollectivePaths::loads(int peer_offset, const RankBlocks& blocks) const {
  Paths paths;
  paths.blocks = &blocks;
  add_exchange(blocks.first_rank(), blocks.ranks(), peer_offset, paths);
  return counted(std::move(paths));
}

PathSummary CollectivePaths::summary(Pattern pattern, const plan::Group& group, int first_rank,
                                     int rank_count) const {
  check_ranks(first_rank, rank_count, *topology_);
  // Where one switch joins hosts, windows that groups tile are classes, too.
  const int window = std::max(group.span(), as_int(topology_->devices_per_host()));
  const bool tiled = topology_->host_copies() && topology_->host_copies()->levels.size() == 1 &&
                     rank_count % window == 0 && first_rank % window == 0;
  const auto blocks = RankBlocks::of(*topology_, first_rank, tiled ? window : rank_count);
  Paths paths;
  paths.pattern = pattern;
  if (!blocks || !blocks->repeats(group)) {
    add_groups(group, first_rank, rank_count, true, paths);
    return summed(std::move(paths));
  }
  paths.blocks = &*blocks;
  paths.inside = blocks->inside(group);
  add_groups(group, blocks->first_rank(), blocks->ranks(), !paths.inside, paths);
  return summed(std::move(paths));
}

PathSummary CollectivePaths::summary(int first_rank, int rank_count, int peer_offset) const {
  const auto blocks = RankBlocks::of(*topology_, first_rank, rank_count);
  Paths paths;
  if (blocks && blocks->repeats(peer_offset)) {
    paths.blocks = &*blocks;
    rank_count = blocks->ranks();
  }
  add_exchange(first_rank, rank_count, peer_offset, paths);
  return summed(std::move(paths));
}

PathSummary CollectivePaths::summary(Pattern pattern,
                                     std::span<const std::vector<int>> groups) const {
  Paths paths;
  paths.pattern = pattern;
  Spreads spreads;
  for (const std::vector<int>& group : groups)
    add_spread({.size = as_int(group.size()), .list = group.data()}, paths, spreads);
  add_sends(spreads, 0, as_int(topology_->device_count()), paths);
  return summed(std::move(paths));
}

PathSummary CollectivePaths::summary(std::span<const int> sender) const {
  Paths paths;
  Neighbours members;
  for (int rank = 0; rank < as_int(sender.size()); ++rank)
    if (const int from = sender[as_index(rank)]; from != rank)
      add_message(from, rank, 1, members, paths);
  find_exchange_links(members, paths);
  return summed(std::move(paths));
}

}  // namespace orrery::costmodel
