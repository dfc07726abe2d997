#pragma once
/// \file
/// Runs a transfer graph on the virtual clock.
///
/// Each instant: (1) everything that ends now ends, (2) everything whose dependencies have ended
/// starts, (3) shares are solved anew in the components whose set of flows changed, (4) ends are
/// rescheduled. Nothing depends on the order of work inside an instant, so times are a function of
/// the graph alone, whatever its transfers and links are numbered.
///
/// Folded (the default), equivalent transfers and links are simulated once (sim/network/fold.h),
/// with the same times to the picosecond.
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/network/background.h"
#include "sim/network/transfer_graph.h"

namespace orrery::sim {

/// From `at_ps` on the link has this capacity: degraded, repaired, or failed with 0. What crosses a
/// failed link waits.
struct LinkChange {
  topologies::LinkId link;
  std::int64_t at_ps = 0;
  std::int64_t bytes_per_second = 0;
};

struct TransferRunOptions {
  bool fold = true;
  std::vector<LinkChange> changes = {};
  std::vector<BackgroundFlow> background = {};
};

struct LinkUse {
  std::int64_t bytes = 0;  // of transfers and background, rounded down
  double utilisation = 0;  // bytes over what the link could have carried until the end
};

struct TransferOutcome {
  std::int64_t end_ps = 0;                // of the last transfer
  std::vector<std::int64_t> ends_ps;      // [transfer] of its last instance
  std::vector<std::int64_t> job_ends_ps;  // [job]
  std::vector<LinkUse> links;             // [link]
  std::uint64_t events = 0;               // simulated: fewer when folded
  std::uint64_t simulated_transfers = 0;  // classes, when folded
  std::uint64_t constraints = 0;          // links that can be full, after folding
  std::string fingerprint;                // of all ends, in order of transfers
};

/// Errors: kOutOfRange for an option about a link that is not there or a negative number;
/// kInconsistent when transfers wait in a cycle, or for a link that stays failed.
base::Result<TransferOutcome> run_transfers(const TransferGraph& graph,
                                            const TransferRunOptions& options = {});

}  // namespace orrery::sim
