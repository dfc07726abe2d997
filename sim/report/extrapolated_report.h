#pragma once
#include <cstdint>

#include "sim/report/report.h"

namespace orrery::sim {

/// A report of a step of so many micro-batches.
struct StepOf {
  std::int64_t micro_batches = 0;
  SimReport report;
};
/// The report of a step of `micro_batches` as two shorter ones of the same plan go on,
///
///     x(m) = x(b) + (x(b) - x(a)) (m - b) / (b - a)
///
/// for every time, size and energy: behind a pipeline's start every micro-batch takes what the one
/// before took. Rates and fractions are of those; none is below 0. Times of a stage add up to the
/// step: what rounding leaves waits, what it adds is taken from the longest.
/// simulated_micro_batches is b. @pre a < b < micro_batches, no timeline nor picture; energy in
/// both or none.
SimReport extrapolated(const StepOf& a, const StepOf& b, std::int64_t micro_batches);

}  // namespace orrery::sim
