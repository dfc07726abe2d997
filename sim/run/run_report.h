#pragma once
/// \file
/// A run with what was asked of it, for people and as JSON (`run` of docs/schemas.md).
#include <string>

#include "base/json_fwd.h"
#include "sim/run/run_cost.h"

namespace orrery::sim {

struct RunReport {
  RunRequest request;
  RunLimits limits;
  RunCost cost;
  RunVerdict verdict;
};
/// Error: that of run_cost().
base::Result<RunReport> run_report(const RunRequest& request, const RunLimits& limits);

base::Json to_json(const RunReport& run);
/// The lines a person reads; a device is a GPU here, as prices have it.
std::string to_text(const RunReport& run);

}  // namespace orrery::sim
