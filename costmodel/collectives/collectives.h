#pragma once
/// \file
/// Prices of communication: alpha-beta closed forms over the links of a topology, or measured bus
/// bandwidths.
///
/// n ranks, S bytes of the whole tensor (as nccl-tests counts), alpha = largest latency of a hop, r
/// = rate of each of the u flows of a rank:
///
///   operation       steps   wire bytes of a rank   u    who sends to whom
///   all-reduce      2(n-1)  2(n-1)S/n     c    rings: reduce-scatter, then all-gather
///   all-gather      n-1     (n-1)S/n      c    rings
///   reduce-scatter  n-1     (n-1)S/n      c    rings
///   all-to-all      1       (n-1)S/n      n-1  everyone to everyone at once
///   broadcast       n-1     S             1    chain from the first rank, pipelined
///   point-to-point  1       S             1    every rank to its successor in the group
///
///   time = steps * alpha + wire / (u r),     r = min over links of capacity / flows
///
/// (nccl-tests PERFORMANCE.md; bus bandwidth is wire bytes / time there and here.) A rank's bytes
/// are u equal unit flows: to each other member, or on each ring. All groups of the class run at
/// once; flows(l) counts their unit flows over link l.
///
/// Rings. Inside a host one, in group order. A group with k members on each of several hosts has c
/// = k: NCCL makes a ring for every network card that members are next to (src/graph/search.cc,
/// connect.cc). Ring i enters an even host at member i + 1 and leaves it at i, an odd host the
/// other way round, so that a wire joins cards of equal place, and visits the members between in
/// turn (back in odd hosts). So every member sends one ring of c over its card and c - 1 to its
/// neighbour on the host: a card of its own carries wire / c, one that all members share all of it,
/// and with k = 1 nothing stays in a host. From the last of an odd number of hosts rings return to
/// the next place. Groups of unlike hosts: one ring.
///
/// Measured entries replace r and alpha. A bus bandwidth w gives u r = w, so that alone the time is
/// steps * latency + wire / w exactly (latency 0 in the entry: the route's). Points (bytes,
/// seconds) are joined by straight lines t = a + b * bytes: steps * alpha becomes a, the rate wire
/// / (b * bytes). Entries of (operation, size, hosts) with the nearest stride are used; all-gather
/// and reduce-scatter without entries take the all-reduce's bus bandwidth. When the measured rate
/// is above what our rings over a link allow, the library evidently uses more paths than they, and
/// that link carries no load of ours. Where such a link is degraded to a part f of what
/// it was built with, the measured rate is taken to fall to f of itself. Links of a detour around a
/// failed link were in no measurement: their shares count.
///
/// In a training step (model::StepCommunication): measured entries take `factor` times as long,
/// links inside hosts give 1 / factor of their rate and those of the fabric `fabric_share`
/// (costmodel/cost_model.h scales the topology), and every operation waits `issue_seconds` more.
///
/// Scope: rings, no trees, no in-switch reduction; links are loaded at the same time by ranks of
/// one class only.
#include <cstdint>
#include <optional>
#include <vector>

#include "costmodel/collectives/rank_blocks.h"
#include "costmodel/collectives/transfer.h"
#include "model/profile.h"
#include "plan/program/program.h"
#include "topologies/topology.h"

namespace orrery::costmodel {

/// Whose flows a transfer holds, of groups that span several rank classes (tied embeddings in the
/// first and last stage): the class's own ranks, for a simulator that adds up the classes' parts;
/// or all members, for the time that the operation takes alone.
enum class Senders : std::uint8_t { kOfClass, kWholeGroups };

/// Measured rates count ppm / 10^6 of themselves, by the hosts that their groups span.
struct RateScale {
  std::int64_t in_hosts_ppm = 1'000'000;
  std::int64_t across_hosts_ppm = 1'000'000;
};

/// Errors of a draw (price_factors.h): latencies and measured times take so many times as long, and
/// links inside hosts and those of the fabric have ppm / 10^6 of their rate, as
/// Topology::with_level_rates() says: a machine of other rates need not be made for its prices.
struct TimeFactors {
  double in_hosts = 1, across_hosts = 1;
  std::int64_t host_links_ppm = 1'000'000, fabric_links_ppm = 1'000'000;
};

/// What the time of a collective depends on beside its bytes: found once, then any number of sizes
/// are priced by arithmetic.
struct PathSummary {
  std::int64_t alpha_ps = 0;  // largest latency of a route
  int hosts = 1;              // of the group that spans most
  std::int64_t units = 1;     // u
  /// The link that gives a flow least: floor(rate · ppm / flows) is least where rate / flows is,
  /// whatever the ppm of all links of a level.
  struct Narrowest {
    std::int64_t bytes_per_second = 0, flows = 0;  // no flows: no link
  };
  Narrowest in_hosts = {}, fabric = {};  // of the links crossed
  std::uint64_t routes = 0;              // looked up
};

/// Links that the flows of an operation cross, whatever its bytes: found once, then any number of
/// sizes become transfers by arithmetic.
struct PathLoads {
  std::int64_t alpha_ps = 0;                     // largest latency of a route
  int hosts = 1;                                 // of the group that spans most
  std::int64_t units = 1;                        // u
  std::vector<LinkLoad> links = {};              // ascending
  std::vector<topologies::LinkId> detours = {};  // ascending; those of routes around failed links
};

class CollectivePrices {
 public:
  /// The topology must outlive this object.
  CollectivePrices(const topologies::Topology& topology,
                   std::vector<model::CollectiveTimes> measured, RateScale scale = {},
                   model::StepCommunication step = {}, TimeFactors errors = {});

  Transfer collective(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                      int first_rank, int rank_count, Senders senders = Senders::kOfClass) const;
  Transfer exchange(int first_rank, int rank_count, int peer_offset, std::int64_t bytes) const;

  /// The same in two steps. The transfers of equal loads equal those above.
  PathLoads loads(plan::Collective op, const plan::Group& group, int first_rank, int rank_count,
                  Senders senders = Senders::kOfClass) const;
  PathLoads loads(int first_rank, int rank_count, int peer_offset) const;
  /// Of the class's own ranks, on links of the first block of each level alone. @pre repeats().
  PathLoads loads(plan::Collective op, const plan::Group& group, const RankBlocks& blocks) const;
  PathLoads loads(int peer_offset, const RankBlocks& blocks) const;
  Transfer collective(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                      const PathLoads& loads) const;
  Transfer exchange(int peer_offset, std::int64_t bytes, const PathLoads& loads) const;

  /// Paths of `collective(...)` with whole groups, and of `exchange`; where blocks repeat
  /// (rank_blocks.h) only those of the first. duration_ps of a summary equals that of the transfer,
  /// on a topology whose links are as built.
  PathSummary summary(plan::Collective op, const plan::Group& group, int first_rank,
                      int rank_count) const;
  PathSummary summary(int first_rank, int rank_count, int peer_offset) const;
  std::int64_t duration_ps(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                           const PathSummary& paths) const;
  std::int64_t exchange_ps(int peer_offset, std::int64_t bytes, const PathSummary& paths) const;

  bool measured() const { return !measured_.empty(); }

 private:
  /// Routes of a set of unit flows.
  struct Paths {
    const RankBlocks* blocks = nullptr;            // only what their first ranks send, if any
    bool inside = false;                           // of these: on links of the first block
    std::vector<LinkLoad> crossed = {};            // links; their flows are added up apart
    std::vector<topologies::LinkId> route = {};    // the last one
    std::vector<topologies::LinkId> detours = {};  // those of routes around failed links
    std::int64_t alpha_ps = 0;                     // largest latency of a route
    int hosts = 1;                                 // of the group that spans most
    std::int64_t units = 1;                        // u
    std::uint64_t routes = 0;                      // looked up
  };
  void add_route(int from, int to, std::int64_t flows, Paths& paths) const;
  /// How a group lies: hosts, and rings (c; 1 where the operation has none).
  struct Spread {
    int hosts = 1, rings = 1;
  };
  Spread spread_of(plan::Collective op, const plan::Group& group, int base) const;
  void add_flows(plan::Collective op, const plan::Group& group, const Spread& spread, int base,
                 int index, Paths& paths) const;
  Paths group_paths(plan::Collective op, const plan::Group& group, int first_rank, int rank_count,
                    Senders senders) const;
  Paths group_paths(plan::Collective op, const plan::Group& group, const RankBlocks& blocks,
                    Senders senders) const;
  void add_groups(plan::Collective op, const plan::Group& group, int first_rank, int rank_count,
                  bool all_members, Paths& paths) const;
  const model::CollectiveTimes* find(plan::Collective op, std::int64_t size, std::int64_t stride,
                                     int hosts) const;
  Paths exchange_paths(int first_rank, int rank_count, int peer_offset,
                       const RankBlocks* blocks = nullptr) const;
  Transfer priced(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                  std::int64_t alpha_ps, int hosts, std::int64_t units) const;
  Transfer priced_exchange(int peer_offset, std::int64_t bytes, std::int64_t alpha_ps,
                           int hosts) const;
  /// Measured entries by scale_ and the step's factor; any operation by its error and with what the
  /// host adds.
  Transfer in_step(Transfer transfer, bool measured, int hosts) const;
  /// Links in the order in which they are first crossed, with the flows that add_route() counted
  /// over each. Once for every Paths, before the thread makes the next.
  std::vector<LinkLoad> flows_of(Paths& paths) const;
  /// [link] flows over it, of the paths that this thread adds up.
  std::int64_t* crossings() const;
  PathLoads counted(Paths paths) const;
  Transfer load(Transfer transfer, const PathLoads& loads) const;
  PathSummary summed(Paths paths) const;
  std::int64_t link_rate(const topologies::Link& link) const;
  /// Of a transfer that has the fabric for itself: a measured cap tells all; else the narrowest
  /// share.
  std::int64_t rate_alone(std::int64_t cap, const PathSummary& paths) const;

  const topologies::Topology* topology_;
  std::vector<model::CollectiveTimes> measured_;
  RateScale scale_;
  model::StepCommunication step_;
  TimeFactors errors_;
};

}  // namespace orrery::costmodel
