#pragma once
#include "base/json_fwd.h"
#include "base/numbers.h"
#include "base/result.h"
#include "plan/program/trace.h"

namespace orrery::cli {

/// Operations of one name and phase, summed over the ranks, layers and micro-batches that both
/// timelines have.
struct MatchRow {
  std::string name;  // "qkv BG"
  std::int64_t count = 0;
  std::int64_t predicted_ps = 0, measured_ps = 0;
  double ratio() const { return measured_ps > 0 ? real(predicted_ps) / real(measured_ps) : 0.0; }
};

struct TimelineMatch {
  std::vector<MatchRow> rows;  // by measured time, longest first
  std::int64_t predicted_step_ps = 0, measured_step_ps = 0;
  // spans of ranks that both have
  std::int64_t matched = 0, only_predicted = 0, only_measured = 0;
};

/// Spans match by (rank, template, index, layer, micro-batch): both interpreters ran the same
/// Program. Error: kInconsistent when the Programs' fingerprints differ.
base::Result<TimelineMatch> match_timelines(const plan::Timeline& predicted,
                                            const plan::Timeline& measured);
base::Json to_json(const TimelineMatch& match);

}  // namespace orrery::cli
