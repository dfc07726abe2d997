#pragma once
#include "base/config.h"
#include "base/json_fwd.h"
#include "base/result.h"

namespace orrery::cli {

/// What training measured, as written by `orrery train --json` (schema `orrery.train/1`,
/// docs/schemas.md).
struct TrainLog {
  std::string model, plan_fingerprint, program_fingerprint;
  int ranks = 1;
  struct Step {
    std::int64_t step = 0;
    double loss = 0, seconds = 0;
  };
  std::vector<Step> steps;
  double step_time_s = 0;                       // median of the steps after the warm-up
  std::vector<std::int64_t> peak_memory_bytes;  // by stage
  // by stage, of a rank: kernels that a step launches on a CUDA device (plan/program/launches.h)
  std::vector<std::int64_t> launches;
};
base::Json to_json(const TrainLog& log);

/// Median; the mean of the two middle values when even. 0 for none.
double median(std::vector<double> values);

}  // namespace orrery::cli
