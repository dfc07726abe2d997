#pragma once
/// \file
/// Dependent transfers over shared links, stated before they run: what a collective, a job or a
/// whole fabric of jobs does.
///
/// A transfer is a *lane*: `repeats` instances, one after another. Instance s first spends its
/// latency, then sends `bytes` at the max-min fair share of the links it loads (kernel/max_min.h),
/// in whole bytes per second, never more than
///
///     u = min( rate_cap, min over its links of floor(capacity / flows) ).
///
/// Without bytes it is a delay: a computation, an overhead.
///
/// A dependency (after, before, distance d) says, with R the repeats of `before`:
///
///     instance s of `after` starts no earlier than the end of instance min(s - d, R - 1) of
///     `before`, if s - d >= 0.
///
/// So a regular schedule is as small as one of its steps. Ring all-reduce of S bytes over n ranks,
/// each step an explicit flow: n transfers of S/n bytes with 2(n-1) repeats, and transfer i depends
/// on transfer i-1 at distance 1 (what it sends is what it received in the step before). A tree
/// that pipelines chunks: one transfer for each edge, repeats = chunks, child on parent at distance
/// 0. "All of a before any of b": distance -(R-1). Graphs of several jobs are joined by append().
///
///     TransferGraph g(topology);
///     const auto a = g.add_message(topology, 0, 8, {.bytes = 1 << 20});
///     const auto b = g.add_message(topology, 8, 0, {.bytes = 1 << 20});
///     g.depend(b, a);
///     Result<TransferOutcome> outcome = run_transfers(g);                       //
///     sim/network/transfer_run.h
#include <cstdint>
#include <span>
#include <vector>

#include "costmodel/collectives/transfer.h"
#include "topologies/topology.h"

namespace orrery::sim {

using TransferId = base::Id<struct TransferTag>;

struct TransferSpec {
  std::int64_t bytes = 0;       // of one instance
  std::int64_t latency_ps = 0;  // before its bytes move; of a delay: how long it takes
  std::int64_t rate_cap = 0;    // bytes per second; 0: only the links limit it
  std::uint32_t repeats = 1;
  std::uint32_t job = 0;  // outcomes are by job
};

class TransferGraph {
 public:
  struct Transfer {
    TransferSpec spec;
    std::int64_t rate = 0;  // u above; 0 without bytes
    std::uint32_t first_load = 0, loads = 0;
  };
  struct Dependency {
    TransferId after, before;
    std::int64_t distance = 0;
  };

  /// Links 0 .. n-1 with these capacities in bytes per second. @pre all > 0.
  explicit TransferGraph(std::vector<std::int64_t> capacities);
  /// The links of a topology.
  explicit TransferGraph(const topologies::Topology& topology);

  /// @pre links exist, each at most once, flows >= 1; bytes, latency, rate_cap >= 0; repeats >= 1;
  /// bytes need a link or a rate_cap.
  TransferId add(const TransferSpec& spec, std::span<const costmodel::LinkLoad> loads = {});
  /// A message along the topology's route, whose latency is added to the spec's. @pre the graph has
  /// the topology's links.
  TransferId add_message(const topologies::Topology& topology, std::uint32_t from_rank,
                         std::uint32_t to_rank, TransferSpec spec);
  /// @pre both exist.
  void depend(TransferId after, TransferId before, std::int64_t distance = 0);
  /// Adds what `other` does, as job `job`, on the same links. Transfer i of `other` becomes
  /// transfer (returned id + i).
  /// @pre equal capacities.
  TransferId append(const TransferGraph& other, std::uint32_t job);

  [[nodiscard]] std::span<const std::int64_t> capacities() const { return capacities_; }
  [[nodiscard]] std::span<const Transfer> transfers() const { return transfers_; }
  [[nodiscard]] std::span<const Dependency> dependencies() const { return dependencies_; }
  [[nodiscard]] std::span<const costmodel::LinkLoad> loads(TransferId transfer) const;
  /// Instances of all transfers.
  [[nodiscard]] std::uint64_t instances() const;

 private:
  std::vector<std::int64_t> capacities_;
  std::vector<Transfer> transfers_;
  std::vector<costmodel::LinkLoad> loads_;
  std::vector<Dependency> dependencies_;
};

}  // namespace orrery::sim
