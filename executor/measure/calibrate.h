#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "executor/measure/block_timing.h"
#include "model/profile.h"

namespace orrery::executor {

struct CalibrateOptions {
  std::string device = "cpu";  // cpu | cuda
  std::string dtype = "fp32";
  // collectives are measured over 2 .. ranks when started under MPI
  int ranks = 2;
  double budget_seconds = 100;
  std::vector<model::ModelSpec> focus;  // shapes near these models are measured densely
  // these too, on one rank each: so that other widths and lengths lie between points
  std::vector<BlockCase> blocks = {};
  std::vector<BlockCase> held_out = {};  // timed in the same turns, and not calibrated with
  std::function<void(double fraction, const std::string& what)> on_progress = {};
};

struct Calibrated {
  model::Profile profile;
  std::vector<BlockTiming> held_out;  // of the cases, in order
};

/// Measures this machine's operations and collectives, fits what whole steps add to them, and
/// returns the profile on rank 0, elsewhere the same. How: calibrate.cc. Errors: kBadValue,
/// kInconsistent (ranks), kMissingFeature, kDevice.
base::Result<Calibrated> calibrate(const CalibrateOptions& options);

}  // namespace orrery::executor
