#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "executor/block_timing.h"
#include "model/profile.h"

namespace orrery::executor {

struct CalibrateOptions {
  std::string device = "cpu";          // cpu | cuda
  std::string dtype = "fp32";
  int ranks = 2;                       // collectives are measured over 2 .. ranks when started under MPI
  double budget_seconds = 100;
  std::vector<model::ModelSpec> focus; // shapes near these models are measured densely
  std::vector<BlockCase> blocks = {};  // these too, on one rank each: so that other widths and lengths lie between points
  std::function<void(double fraction, const std::string& what)> on_progress = {};
};

/// Measures this machine's operations (median of repeated runs over rotating buffers) and collectives, fits the composition factor on
/// one whole layer per family, and returns the profile on rank 0. Errors: kBadValue, kInconsistent (ranks), kMissingFeature, kDevice.
base::Result<model::Profile> calibrate(const CalibrateOptions& options);

}  // namespace orrery::executor
