#pragma once
/// \file
/// Replayed ranks beside what was predicted of them, and the step predicted again with what they
/// computed.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "plan/program/plan.h"
#include "plan/program/trace.h"
#include "sim/simulate.h"

namespace orrery::cli {

/// A number of one rank, predicted and replayed.
struct Replayed {
  double predicted = 0, replayed = 0;
  [[nodiscard]] double error() const { return replayed > 0 ? predicted / replayed - 1 : 0; }
};

/// A rank class, by one of its ranks.
struct ReplayRow {
  int stage = 0, first_rank = 0, ranks = 0, rank = 0;
  Replayed compute_s;          // sum over a step
  double communication_s = 0;  // the same; predicted, and replayed as that
  Replayed step_s;             // of the rank by itself (sim/step/rank_alone.h)
  Replayed peak_bytes;
};

/// A step with computation as replayed: what is left of it is model.
struct FedBackStep {
  double step_s = 0;
  // shares, means over ranks; the rest is computation
  double exposed_communication = 0, bubble = 0;
};

struct ReplayReport {
  std::string device;  // "cpu" or "cuda"
  int steps = 0;
  std::vector<ReplayRow> rows;
  double predicted_step_s = 0;
  std::optional<FedBackStep> fed_back;  // where every class was replayed
};

/// Adds the mean time of each operation that computes, over the layers and micro-batches of a
/// replayed rank's `spans`.
void add_compute_times(const std::vector<plan::Span>& spans, std::uint32_t rank_class,
                       sim::ComputeTimes& times);
double compute_seconds(const std::vector<plan::Span>& spans);

/// Schema `orrery.replay/1`, docs/schemas.md.
base::Json to_json(const ReplayReport& report, const plan::Plan& plan);
/// The table a person reads.
std::string to_text(const ReplayReport& report);

}  // namespace orrery::cli
