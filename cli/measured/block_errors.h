#pragma once
/// Whole blocks of shapes that no calibration measures: what a profile's prices of their operations
/// are off by.

#include "base/options.h"
#include "base/result.h"
#include "cli/measured/validate_plans.h"
#include "executor/measure/block_timing.h"
#include "model/profile.h"

namespace orrery::cli {

struct BlockError {
  std::string name;
  double predicted_s = 0, measured_s = 0;  // forward + backward of a micro-batch
  double error() const { return predicted_s / measured_s - 1; }
};

/// `timings` of `cases`, in order; the cluster is the command's.
base::Result<std::vector<BlockError>> block_errors(const base::Options& options,
                                                   std::span<const executor::BlockCase> cases,
                                                   std::span<const executor::BlockTiming> timings,
                                                   const model::Profile& profile,
                                                   model::Precision precision);
StepErrors summary_of(std::span<const BlockError> rows);
void print_blocks(std::span<const BlockError> rows);

}  // namespace orrery::cli
