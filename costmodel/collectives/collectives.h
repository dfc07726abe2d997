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
/// Groups lie on hosts and cards as costmodel/collectives/collective_patterns.h says: a group with
/// k members on each of several hosts has c = k rings, one for every network card that members are
/// next to, so that a card of its own carries wire / c, and with k = 1 nothing stays in a host.
///
/// A library replaces all that, but for what runs in pieces beside a product, whose kernels move
/// the tensor themselves (userbuffers of Transformer Engine, symmetric memory of PyTorch): NCCL's
/// choice among rings, trees and in-switch reduction and its
/// protocols, with their latencies, limits and copies (costmodel/collectives/group_forms.h). Alone
/// an operation takes what `orrery collective` says in closed form. Its wire bytes over the rate
/// that links or the library's limit give are the part that what runs beside it slows; the rest is
/// latency.
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
/// In a training step (model::StepCommunication) measured entries, and operations in one host, take
/// `factor` times as long, links of the fabric give `fabric_share` of their rate
/// (costmodel/cost_model.h scales the topology), and every operation waits `issue_seconds` more.
/// The library chooses by the rates that links have outside a step.
///
/// Scope: links are loaded at the same time by ranks of one class only; all groups of it are taken
/// to have the rate that NCCL sees of one.
#include <cstdint>
#include <memory>
#include <vector>

#include "costmodel/collectives/collective_paths.h"
#include "costmodel/collectives/group_forms.h"
#include "costmodel/collectives/rank_blocks.h"
#include "costmodel/collectives/transfer.h"
#include "model/profile.h"
#include "plan/program/program.h"
#include "topologies/topology.h"

namespace orrery::costmodel {

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

/// How an operation runs: as the library chooses; without one, where times were measured, and
/// beside a product in pieces, in rings or direct exchanges.
struct RunsAs {
  bool library = false;
  CollectiveChoice choice = {};
  Pattern pattern = Pattern::kRings;
  bool issued = true;  // by the host, else by the products that it runs beside
};

class CollectivePrices {
 public:
  /// The topology must outlive this object.
  CollectivePrices(const topologies::Topology& topology,
                   std::vector<model::CollectiveTimes> measured, RateScale scale = {},
                   model::StepCommunication step = {}, TimeFactors errors = {},
                   std::shared_ptr<const CollectiveTuning> library = nullptr);

  Transfer collective(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                      int first_rank, int rank_count, Senders senders = Senders::kOfClass,
                      bool in_pieces = false) const;
  Transfer exchange(int first_rank, int rank_count, int peer_offset, std::int64_t bytes) const;

  /// The same in steps: paths of the pattern that the operation has by itself, how that many bytes
  /// run, paths of that pattern, the transfer. Those of equal loads are equal.
  static Pattern usual_pattern(plan::Collective op);
  RunsAs runs_as(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                 const PathSummary& usual, bool in_pieces = false) const;
  const CollectivePaths& paths() const { return paths_; }
  /// @pre loads of how.pattern.
  Transfer collective(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                      const RunsAs& how, const PathLoads& loads) const;
  Transfer exchange(int peer_offset, std::int64_t bytes, const PathLoads& loads) const;

  /// duration_ps of a summary equals that of the transfer, on a topology whose links are as built.
  std::int64_t duration_ps(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                           const RunsAs& how, const PathSummary& paths) const;
  std::int64_t exchange_ps(int peer_offset, std::int64_t bytes, const PathSummary& paths) const;

  /// Whether anything was measured, or a library is known.
  bool measured() const { return !measured_.empty(); }

 private:
  const model::CollectiveTimes* find(plan::Collective op, std::int64_t size, std::int64_t stride,
                                     int hosts) const;
  const model::CollectiveTimes* find_exchange(int peer_offset, int hosts) const;
  /// Of the operation or, of a half of an all-reduce, of that.
  bool has_measured(plan::Collective op, const plan::Group& group, int hosts) const;
  Transfer priced(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                  const RunsAs& how, const PathSummary& paths) const;
  Transfer priced_exchange(const model::CollectiveTimes* entry, std::int64_t bytes,
                           const PathSummary& paths) const;
  RunsAs exchange_runs_as(std::int64_t bytes, const PathSummary& paths) const;
  std::int64_t in_step(std::int64_t amount, int hosts) const;
  /// Measured entries by scale_ and the step's factor; any operation by its error and with what the
  /// host adds.
  Transfer in_step(Transfer transfer, bool measured, int hosts, bool issued) const;
  Transfer load(Transfer transfer, const PathLoads& loads) const;
  /// The library's terms as a step finds them.
  struct LibraryCall {
    CollectiveTerms terms = {};
    std::int64_t unit_bytes = 0;  // on the wire, of one of the paths' units
    CollectiveDuration duration = {};
  };
  LibraryCall call(plan::Collective op, std::int64_t bytes, const CollectiveChoice& choice,
                   const PathSummary& paths) const;
  Transfer library_transfer(plan::Collective op, std::int64_t bytes, const CollectiveChoice& choice,
                            const PathLoads& loads) const;
  FlowRates flow_rates(const PathSummary& paths, bool outside_steps) const;
  std::int64_t link_rate(const topologies::Link& link) const;
  /// Of a transfer that has the fabric for itself: a measured cap tells all; else the narrowest
  /// share.
  std::int64_t rate_alone(std::int64_t cap, const PathSummary& paths) const;

  const topologies::Topology* topology_;
  std::shared_ptr<const CollectiveTuning> library_;
  CollectivePaths paths_;
  std::vector<model::CollectiveTimes> measured_;
  RateScale scale_;
  model::StepCommunication step_;
  TimeFactors errors_;
};

}  // namespace orrery::costmodel
