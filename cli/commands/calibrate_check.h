#pragma once
/// `orrery calibrate --check`: whether a profile is fit for the machine and the models it is used
/// for.
#include "base/options.h"
#include "base/result.h"
#include "cli/command.h"

namespace orrery::cli {

/// Prints what is missing or stale in the profile and how it hurts; with --measure also what its
/// prices of whole blocks, of shapes that no calibration measures, are off by. 0: read and judged,
/// whatever the judgement.
Result<int> check_profile(const Options& options, const Invocation& invocation);

}  // namespace orrery::cli
