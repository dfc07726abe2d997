#pragma once
#include "base/result.h"
#include "model/spec.h"
#include "plan/program/plan.h"

namespace orrery::cli {

/// A plan of the fixed set that validation trains with.
struct NamedPlan {
  std::string name;
  plan::Plan plan;
};

/// Up to `count` different plans for `ranks` ranks: data parallel, ZeRO-1, ZeRO-3, tensor, tensor +
/// sequence parallel, pipeline with 2 and with 8 micro-batches, recomputation; with more than 2
/// ranks also their mixes; for one rank numbers of micro-batches and kinds of recomputation. Those
/// that do not divide the model are left out.
base::Result<std::vector<NamedPlan>> validation_plans(
    const model::ModelSpec& model, const std::string& cluster, int ranks, std::int64_t global_batch,
    std::int64_t sequence, model::Precision precision, std::size_t count);

/// What prediction and measurement of a plan say of each other. It trained in rounds, between which
/// the machine drifts.
struct ValidationRow {
  std::string name;
  double predicted_s = 0;
  // measured step time of each round
  std::vector<double> rounds_s;
  std::vector<std::int64_t> predicted_peak_bytes, measured_peak_bytes;  // by stage
  /// Median of the rounds.
  double measured_s() const;
  /// (p90 - p10) / (2 median) of the rounds.
  double spread() const;
  /// What 80 % of such medians stay within of the true one, as a share: sqrt(pi / 2) spread /
  /// sqrt(rounds), for normal noise.
  double noise() const;
  /// Of the prediction times `drift`, what a fixed work takes now over what it took at calibration.
  double step_error(double drift = 1) const { return drift * predicted_s / measured_s() - 1.0; }
  /// predicted / measured - 1 of the stage where it is smallest, and where it is largest; 0 when
  /// nothing was measured.
  std::pair<double, double> memory_errors() const;
};

struct StepErrors {
  double mean = 0, largest = 0;  // of |error|
};
StepErrors errors_of(std::span<const double> signed_errors);
/// @pre rows is not empty and measured times are positive.
StepErrors step_errors(const std::vector<ValidationRow>& rows, double drift = 1);

struct ValidationSummary {
  StepErrors step;
  double max_memory_error = 0;  // |predicted / measured - 1|, over plans and stages
  // 1 - predicted / measured, at least 0: by how much memory was predicted too small
  double max_memory_shortfall = 0;
  std::size_t chosen = 0;   // the predicted best
  std::size_t fastest = 0;  // the measured best
  // no more slower than it than the noise of both, added in squares; it too
  std::vector<std::size_t> fastest_within_noise;
  // how much slower the predicted best really is than the measured best
  double regret = 0;
  double rank_correlation = 0;  // Spearman
};
/// @pre as step_errors().
ValidationSummary summarize(const std::vector<ValidationRow>& rows);

}  // namespace orrery::cli
