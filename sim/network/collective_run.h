#pragma once
/// \file
/// Runs a collective's schedule on the fair shares of the links (sim/network/flow_network.h) and
/// reports what nccl-tests would.
///
///     algbw = bytes / time,   busbw = algbw * 2(n-1)/n, (n-1)/n or 1   (nccl-tests PERFORMANCE.md)
///
/// Large schedules are folded. The steps of a ring are all alike:
/// T(r) = T(2) + (r - 2) (T(2) - T(1)) once the first two rounds are in step (every message of a
/// round ends at one time), exactly; otherwise, and wherever links were changed or others send, a
/// few rounds after a first few stand for the rest. In a full pipeline (chain, tree) every path is
/// busy: one such round gives the time of a message, and the closed form does the rest. The time of
/// an NVLS tree is A + D / chunks: two runs with few chunks give A and D. What was folded is said
/// in the report.
#include <cstdint>
#include <span>
#include <string>

#include "sim/network/background.h"
#include "sim/network/collective_schedule.h"

namespace orrery::sim {

struct CollectiveResult {
  std::int64_t time_ps = 0;
  std::uint64_t events = 0;     // of the simulated part
  std::uint64_t messages = 0;   // simulated
  bool folded = false;          // the rest follows from the part
  std::string bottleneck = {};  // link that is busy longest: "gpu[0] -> nvswitch (host 0)"
  double bottleneck_busy = 0;   // share of the time
};

/// Time and events of one schedule, run whole, beside the traffic of others.
[[nodiscard]] CollectiveResult run_schedule(const topologies::Topology& topology,
                                            const CollectiveSchedule& schedule,
                                            std::span<const BackgroundFlow> background = {});

/// The collective of `request`; schedules of more than `max_steps` steps are folded.
[[nodiscard]] CollectiveResult run_collective(const topologies::Topology& topology,
                                              const costmodel::CollectiveForms& forms,
                                              const CollectiveRequest& request,
                                              std::int64_t max_steps = 1'000'000,
                                              std::span<const BackgroundFlow> background = {});

}  // namespace orrery::sim
