#pragma once
/// \file
/// One point of `orrery sweep`: the fastest plan there, or one plan held.
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/options.h"
#include "base/result.h"
#include "cli/tables/sweep_axes.h"
#include "plan/program/plan.h"

namespace orrery::cli {

/// What the command line says of every point: a plan, or the question for one; a run.
struct SweepBase {
  std::vector<base::OptionSpec> options;  // that a point may take
  base::Options given;                    // @pre holds all of `options`
  std::optional<plan::Plan> held;         // no search: this plan, at every point
};

enum class PointStatus { kOk, kInfeasible, kError };
std::string_view to_string(PointStatus status);

/// Numbers are those of `plan` and `simulate`; zero where there is no plan or no run.
struct PointResult {
  PointStatus status = PointStatus::kError;
  std::string message;                           // what lacks, or is wrong
  std::int64_t step_ps = 0, tokens = 0;          // of a step
  std::int64_t devices = 0;                      // of the cluster, idle ones too
  std::int64_t ranks = 0;                        // of the plan
  std::int64_t peak_bytes = 0, limit_bytes = 0;  // of a device
  double mfu = 0;                                // of the devices that the plan uses
  double flops_per_s_device = 0;                 // of the model, likewise
  double band_low = 1, band_high = 1;            // the 80 % band, over the step time
  double gap = 0;                                // proven: of the closed form
  std::string plan;                              // in words
  // Of the run that --tokens asks for (sim/run/run_cost.h); nothing where it is not said.
  std::optional<double> days, dollars, mwh, kg_co2, joules_per_token;
  std::optional<bool> met;  // its deadline and budget
  bool operator==(const PointResult&) const = default;
  [[nodiscard]] double tokens_per_s() const;
};
base::Json to_json(const PointResult& result);
/// @pre made by to_json.
PointResult point_result(const base::Json& json);

/// Names of axes that are neither options of a point nor PART.FIELD. Errors: kUsage with "did you
/// mean".
base::Result<void> check_axes(const SweepBase& base, std::span<const Axis> axes);

/// Faults of a point are its result: they do not keep the others from running. `known`: asked for
/// what an earlier run found, by a key that stands for all that the result depends on.
class PointStore;
PointResult run_point(const SweepBase& base, const Assignment& point, PointStore* store);

}  // namespace orrery::cli
