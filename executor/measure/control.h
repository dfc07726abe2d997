#pragma once
/// A fixed work that tells how fast this machine is now.
///
/// Shared and virtual machines drift by more than what plans differ in, within minutes. The same
/// work, timed while a machine is calibrated and again while it trains, tells drift from a wrong
/// prediction.
#include <span>

#include "base/result.h"
#include "executor/runtime/site.h"
#include "model/profile.h"

namespace orrery::executor {

/// Compute: a training step of one GPT block, by every rank on its own, all at once (median of
/// eight steps, mean of ranks). Collective: an all-reduce of 1 MiB over all ranks (median of 15,
/// slowest rank), 0 with one rank. Wall seconds, as a step of training is measured. Errors:
/// kDevice, kCollective.
base::Result<model::Control> time_control(Site& site, model::Precision precision);

/// Medians of `timings` (not empty) and their spread.
model::Control summary_of(std::span<const model::Control> timings);

}  // namespace orrery::executor
