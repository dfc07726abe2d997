#pragma once
/// \file
/// The smallest cluster whose run meets its deadline and budget (`orrery sweep --smallest`).
///
/// Speed is not monotone in the number of hosts, for heads, layers and batch divide some numbers
/// and not others. So points are tried upwards, and the first that meets the limits is the answer.
/// A point is passed over where even products at their peak would be late:
///
///     wall >= tokens · f / (devices · peak)      f: the model's FLOPs a token, of any plan
///
/// f and the peak of a device are those of the largest point that has a plan, which is tried first.
#include <functional>
#include <vector>

#include "base/units.h"
#include "cli/tables/sweep_report.h"

namespace orrery::cli {

struct SmallestLimits {
  double tokens = 0;         // of the run
  base::Seconds deadline{};  // zero: none
};

/// Keeps of `sweep` the points that were tried, in their order, with their results. `run` evaluates
/// points, several at once, into results in the same order; so many points at a time.
/// Error: kUsage, when the axes are not one with hosts that ascend.
base::Result<void> find_smallest(
    Sweep& sweep, const SmallestLimits& limits, std::size_t at_a_time,
    const std::function<std::vector<PointResult>(const std::vector<Assignment>&)>& run);

}  // namespace orrery::cli
