#pragma once
/// \file
/// A collective as explicit messages: who sends how many bytes to whom after what.
///
/// A *path* is one way that carries one message at a time (a sender's channel to its peer): links,
/// bytes of a message, limit. A *step* is one message on a path, or a pause (no path), and starts
/// when the steps it depends on have ended and its path is free, first come first served:
///
///     wire          bytes at the max-min fair rate of the path
///     hold          the sender is busy with it, its links are not; then the path is free again
///     latency       on its way; the step ends, and what depends on it may start
///
/// so messages follow each other on a path without waiting for the latency of the one before:
/// chunks are pipelined.
///
/// Patterns come from costmodel/collectives/collective_patterns.h, sizes and latencies from
/// costmodel/collectives/group_forms.h. `repeats` cuts a schedule: the first steps of a ring,
/// or the tensor in fewer, larger chunks for the pipelined algorithms.
///
/// Pieces. The tensor is numbered in `pieces`; a step carries a range of them and either reduces
/// into what the receiver has or overwrites it. Executed on symbolic data every all-reduce leaves
/// every contribution everywhere (tests/property/sim/collective_schedule_test.cc). The messages of
/// NVLS and of all-to-all in large groups are sums over many pieces and have none.
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "costmodel/collectives/collective_forms.h"
#include "costmodel/collectives/transfer.h"
#include "topologies/topology.h"

namespace orrery::sim {

struct CollectiveSchedule {
  static constexpr std::uint32_t kNoPath = std::numeric_limits<std::uint32_t>::max();
  struct Path {
    int from = 0;
    int to = 0;
    std::int64_t data_bytes = 0;
    std::int64_t wire_bytes = 0;
    std::int64_t rate_limit = 0;  // 0: none
    std::int64_t hold_ps = 0;
    std::vector<costmodel::LinkLoad> links = {};
  };
  struct Step {
    std::uint32_t path = kNoPath;
    std::int64_t latency_ps = 0;
    int first_piece = 0;
    int pieces = 0;
    bool reduces = false;
  };
  std::vector<Path> paths;
  std::vector<Step> steps;
  std::vector<std::uint32_t> dependency_begin{0};  // [step + 1]
  std::vector<std::uint32_t> dependencies;         // earlier steps
  int pieces = 0;

  std::uint32_t add_path(Path path);
  /// @pre dependencies are earlier steps; kNoStep among them is left out.
  std::uint32_t add_step(Step step, std::span<const std::uint32_t> after);
};
inline constexpr std::uint32_t kNoStep = std::numeric_limits<std::uint32_t>::max();

/// What a schedule is made of. `topology` is the one of `forms`.
struct CollectiveRequest {
  model::Collective op = model::Collective::kAllReduce;
  std::int64_t bytes = 0;
  costmodel::CollectiveTerms terms = {};
};

/// The whole collective when `repeats` = terms.repeats; see above for fewer. @pre 1 <= repeats.
[[nodiscard]] CollectiveSchedule make_schedule(const topologies::Topology& topology,
                                               const costmodel::CollectiveForms& forms,
                                               const CollectiveRequest& request,
                                               std::int64_t repeats);
/// One message on every path of a ring or tree, all at once: what they do in a full pipeline.
[[nodiscard]] CollectiveSchedule make_round(const topologies::Topology& topology,
                                            const costmodel::CollectiveForms& forms,
                                            const CollectiveRequest& request);
/// Steps that such a schedule has, without making it.
[[nodiscard]] std::int64_t schedule_steps(const topologies::Topology& topology,
                                          const costmodel::CollectiveForms& forms,
                                          const CollectiveRequest& request, std::int64_t repeats);

}  // namespace orrery::sim
