#pragma once
/// \file
/// A transfer graph made ready for the clock: flat arrays, and only those links that can be full.
///
/// With u_f the most that transfer f can send and a_{f,l} its flows on link l, link l can never be
/// full, and is left out, when
///
///     sum over f of a_{f,l} * u_f  <=  least capacity that l ever has.
///
/// That covers every link that one transfer alone loads. Links loaded alike (the same transfers,
/// the same flows) are one constraint with the smallest capacity. Both leave max-min fair rates as
/// they are, up to their rounding, and both look at sums and sets only, so that equivalent links
/// are treated alike: a folded system (sim/network/fold.h) is of the same form, a lane then being a
/// class, and a_{f,l} the flows of the class on each link of the class.
#include <cstdint>
#include <vector>

#include "sim/network/transfer_run.h"

namespace orrery::sim {

/// Arrays of items 0 .. n-1, each with a run of entries: those of i are entries[begin[i]] ..
/// entries[begin[i + 1] - 1].
template <typename Entry>
struct Runs {
  std::vector<std::uint32_t> begin = {0};
  std::vector<Entry> entries = {};
  void close() { begin.push_back(static_cast<std::uint32_t>(entries.size())); }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(begin.size() - 1); }
  [[nodiscard]] std::span<const Entry> operator[](std::uint32_t i) const {
    return std::span<const Entry>(entries).subspan(begin[i], begin[i + 1] - begin[i]);
  }
};

struct FlowSystem {
  struct Lane {
    std::int64_t bytes = 0;
    std::int64_t latency_ps = 0;
    std::int64_t rate = 0;  // u_f
    std::uint32_t repeats = 1;
    bool endless = false;  // background
    auto operator<=>(const Lane&) const = default;
  };
  struct Load {
    std::uint32_t constraint = 0;
    std::int64_t flows = 0;
    auto operator<=>(const Load&) const = default;
  };
  /// Instance s waits for instance min(s - distance, its repeats - 1) of lane `before`.
  struct Wait {
    std::uint32_t before = 0;
    std::int64_t distance = 0;
    auto operator<=>(const Wait&) const = default;
  };
  struct Change {
    std::int64_t at_ps = 0;
    std::uint32_t constraint = 0;
    std::int64_t capacity = 0;
    auto operator<=>(const Change&) const = default;
  };
  std::vector<Lane> lanes;               // transfers, then background flows
  Runs<Load> loads;                      // [lane], ascending
  Runs<Wait> waits;                      // [lane], ascending
  std::vector<std::int64_t> capacities;  // [constraint] at the first instant
  std::vector<Change> changes;           // ascending
};

/// @pre the options are valid for the graph.
[[nodiscard]] FlowSystem make_system(const TransferGraph& graph, const TransferRunOptions& options);

/// What each lane of a system did.
struct LaneOutcome {
  std::int64_t end_ps = 0;  // of the last instance
  std::int64_t bytes = 0;   // moved; of endless lanes, rounded down
};
struct SystemOutcome {
  std::int64_t end_ps = 0;
  std::uint64_t events = 0;
  std::vector<LaneOutcome> lanes;
};

/// Runs it (rules: sim/network/transfer_run.h). Error: kInconsistent when nothing can progress.
[[nodiscard]] base::Result<SystemOutcome> run_system(const FlowSystem& system);

}  // namespace orrery::sim
