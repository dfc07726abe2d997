#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace orrery::cli {

/// A plan of the fixed set that validation trains with.
struct NamedPlan {
  std::string name;
  plan::Plan plan;
};

/// Up to `count` different plans for `ranks` ranks: data parallel, ZeRO-1, ZeRO-3, tensor, tensor + sequence parallel, pipeline with 2 and
/// with 8 micro-batches, recomputation; with more than 2 ranks also their mixes; for one rank numbers of micro-batches and kinds of
/// recomputation. Those that do not divide the model are left out.
base::Result<std::vector<NamedPlan>> validation_plans(const model::ModelSpec& model, const std::string& cluster, int ranks, std::int64_t global_batch,
                                                      std::int64_t sequence, model::Precision precision, std::size_t count);

/// What prediction and measurement of a set of plans say of each other.
struct ValidationRow {
  std::string name;
  double predicted_s = 0, measured_s = 0;
  std::vector<std::int64_t> predicted_peak_bytes, measured_peak_bytes;   // by stage
  [[nodiscard]] double step_error() const { return predicted_s / measured_s - 1.0; }
  /// Largest |predicted / measured - 1| over the stages.
  [[nodiscard]] double memory_error() const;
};
struct ValidationSummary {
  double mean_abs_step_error = 0, max_abs_step_error = 0, max_memory_error = 0;
  double regret = 0;              // how much slower the predicted best really is than the measured best
  double rank_correlation = 0;    // Spearman
};
/// @pre rows is not empty and measured times are positive.
ValidationSummary summarize(const std::vector<ValidationRow>& rows);

}  // namespace orrery::cli
