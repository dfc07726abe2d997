#pragma once
/// \file
/// A sweep as a table: for people, as CSV, as a document.
///
///     efficiency   tokens a second and device, over those of the point with the fewest devices
///                  among points that differ only in what `hosts` varies with
///     device time  hours of devices that 10^12 tokens take
///     front        no other point is faster without more device time, nor takes less without being
///                  slower (Pareto)
#include <optional>
#include <vector>

#include "base/json_fwd.h"
#include "cli/tables/sweep_axes.h"
#include "cli/tables/sweep_point.h"

namespace orrery::cli {

struct Sweep {
  std::vector<Axis> axes;
  std::vector<Assignment> points;
  std::vector<PointResult> results;  // of each point
};

/// Nothing for a point without a plan.
struct PointMerit {
  std::optional<double> efficiency;  // where the sweep varies hosts
  std::optional<double> device_hours;
  bool front = false;
};
std::vector<PointMerit> merits_of(const Sweep& sweep);

/// Aligned columns, the front marked, and below it what stands out.
std::string to_text(const Sweep& sweep);
/// One line a point: axes, then the fields of the document.
std::string to_csv(const Sweep& sweep);
/// `orrery.sweep/1`.
base::Json to_json(const Sweep& sweep);

}  // namespace orrery::cli
