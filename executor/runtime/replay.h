#pragma once
/// \file
/// Serial replay: a rank of a plan for any number of devices runs alone on this one. Computation
/// and memory are the rank's own; communication moves nothing, and each operation of it takes the
/// time predicted for it (on CUDA its stream waits, so that it runs beside computation as the
/// Program allows). No peer is waited for, and what would come from one is made up: losses mean
/// nothing.
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "executor/runtime/run.h"
#include "plan/program/program.h"

namespace orrery::executor {

struct ReplayedRank {
  int rank = 0;
  // what each operation of its step takes, in issue order; of computation unused
  std::vector<std::int64_t> op_ps;
};

/// Of `options` the backend is unused. The report is of this rank: memory of its stage alone, and
/// its own spans. Memory is free again when this returns, for the next rank. Errors: kOutOfRange
/// (no such rank), kUnsupported, kMissingFeature, kDevice.
base::Result<RunReport> replay(const plan::Program& program, const ReplayedRank& rank,
                               const RunOptions& options);

}  // namespace orrery::executor
