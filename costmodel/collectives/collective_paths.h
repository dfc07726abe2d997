#pragma once
/// \file
/// Links that collectives and exchanges of a class of ranks cross, whatever their bytes: the sends
/// of collective_patterns.h along the routes of a topology.
///
/// All groups of the class run at once. A rank's bytes are u equal unit flows of its group's
/// pattern; where groups of a class lie unlike, u is a common multiple, and each counts its flows
/// so many times. flows(l) of them cross link l.
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "costmodel/collectives/collective_forms.h"
#include "costmodel/collectives/collective_patterns.h"
#include "costmodel/collectives/rank_blocks.h"
#include "costmodel/collectives/transfer.h"
#include "plan/program/messages.h"
#include "plan/program/program.h"
#include "topologies/topology.h"

namespace orrery::costmodel {

/// Whose flows a transfer holds, of groups that span several rank classes (tied embeddings in the
/// first and last stage): the class's own ranks, for a simulator that adds up the classes' parts;
/// or all members, for the time that the operation takes alone.
enum class Senders : std::uint8_t { kOfClass, kWholeGroups };

/// The link that gives a flow least: floor(rate · ppm / flows) is least where rate / flows is,
/// whatever the ppm of all links of a level.
struct NarrowestLink {
  std::int64_t bytes_per_second = 0, flows = 0;  // no flows: no link
};

/// What the time of a collective depends on beside its bytes: found once, then any number of sizes
/// are priced by arithmetic.
struct PathSummary {
  Pattern pattern = Pattern::kRings;
  std::int64_t alpha_ps = 0;                 // largest latency of a route
  GroupShape shape = {};                     // of the group that spans most hosts
  std::int64_t units = 1;                    // u
  NarrowestLink in_hosts = {}, fabric = {};  // of the links crossed, as they were built
  std::uint64_t routes = 0;                  // looked up
};

/// The same with all links, for a network in which others share them.
struct PathLoads : PathSummary {
  std::vector<LinkLoad> links = {};              // ascending
  std::vector<topologies::LinkId> detours = {};  // ascending; those of routes around failed links
};

class CollectivePaths {
 public:
  /// Both must outlive this object; without `library` shapes say nothing of switches.
  CollectivePaths(const topologies::Topology& topology, const CollectiveTuning* library)
      : topology_(&topology), library_(library) {}

  /// @pre group of at least two ranks.
  PathLoads loads(Pattern pattern, const plan::Group& group, int first_rank, int rank_count,
                  Senders senders) const;
  /// Of the groups of some ranks, on the links that these cross, with the flows of all that run at
  /// once. @pre groups are whole in both ranges, the first within the second.
  PathLoads loads_of_part(Pattern pattern, const plan::Group& group, int first_rank, int rank_count,
                          int all_first, int all_count) const;
  /// Every rank sends to the one `peer_offset` further. @pre peer_offset != 0.
  PathLoads loads(int first_rank, int rank_count, int peer_offset) const;
  /// Of listed messages: flows are their units, and `units` what a rank's bytes are split over.
  PathLoads loads(std::span<const plan::Message> messages, std::int64_t unit_bytes,
                  std::int64_t units) const;
  [[nodiscard]] const topologies::Topology& topology() const { return *topology_; }
  /// Of the class's own ranks, on links of the first block of each level alone. @pre repeats().
  PathLoads loads(Pattern pattern, const plan::Group& group, const RankBlocks& blocks) const;
  PathLoads loads(int peer_offset, const RankBlocks& blocks) const;

  /// Of whole groups; where blocks repeat (rank_blocks.h) only those of the first.
  PathSummary summary(Pattern pattern, const plan::Group& group, int first_rank,
                      int rank_count) const;
  PathSummary summary(int first_rank, int rank_count, int peer_offset) const;
  /// Of listed groups of equal size, all at once. @pre members of one host are neighbours.
  PathSummary summary(Pattern pattern, std::span<const std::vector<int>> groups) const;
  /// Rank i receives from rank sender[i]; from itself: nothing.
  PathSummary summary(std::span<const int> sender) const;

  /// Of links at the rates that they have now.
  void find_narrowest(std::span<const LinkLoad> links, PathSummary& summary) const;

 private:
  /// Routes of a set of unit flows.
  struct Paths : PathLoads {
    const RankBlocks* blocks = nullptr;          // only what their first ranks send, if any
    bool inside = false;                         // of these: on links of the first block
    std::vector<topologies::LinkId> route = {};  // the last one
  };
  /// Ranks of one group, or listed.
  struct Members {
    int base = 0, size = 1;
    const plan::Group* group = nullptr;
    const int* list = nullptr;
    int operator[](int i) const { return list != nullptr ? list[i] : group->member(base, i); }
  };
  struct Spread {
    Members members;
    GroupSpread spread;
  };
  using Spreads = std::vector<Spread>;
  void add_route(int from, int to, std::int64_t flows, Paths& paths) const;
  GroupSpread spread_of(const Members& members) const;
  void find_links(const Members& members, GroupShape& shape) const;
  void add_spread(const Members& members, Paths& paths, Spreads& spreads) const;
  Spreads spreads_of(const plan::Group& group, int first_rank, int rank_count, Paths& paths) const;
  void add_groups(const plan::Group& group, int first_rank, int rank_count, bool all_members,
                  Paths& paths) const;
  /// What ranks of [first_rank, +rank_count) send.
  void add_sends(const Spreads& spreads, int first_rank, int rank_count, Paths& paths) const;
  void add_exchange(int first_rank, int rank_count, int peer_offset, Paths& paths) const;
  void add_message(int from, int to, std::int64_t flows, Neighbours& members, Paths& paths) const;
  void find_exchange_links(const Neighbours& members, Paths& paths) const;
  /// Links in the order in which they are first crossed, with the flows that add_route() counted
  /// over each. Once for every Paths, before the thread makes the next.
  void count(Paths& paths) const;
  /// [link] flows over it, of the paths that this thread adds up.
  std::int64_t* crossings() const;
  PathLoads counted(Paths paths) const;
  PathSummary summed(Paths paths) const;
  /// Of the first `count` of them.
  std::shared_ptr<const std::vector<Places>> cycles_of(const Members& members, int count) const;

  const topologies::Topology* topology_;
  const CollectiveTuning* library_;
  struct KnownCycles {
    std::mutex mutex;
    std::map<std::vector<int>, std::shared_ptr<const std::vector<Places>>> by_members;
  };
  // by members' places in their host
  std::shared_ptr<KnownCycles> cycles_ = std::make_shared<KnownCycles>();
};

}  // namespace orrery::costmodel
