#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "costmodel/uncertainty/uncertainty.h"
#include "plan/program/plan.h"
#include "search/loop/planner.h"
#include "search/proof/certificate_check.h"
#include "sim/simulate.h"

namespace orrery::cli {

/// "4.19 s", "36.0 GiB".
std::string show_time(std::int64_t ps);
std::string show_bytes(std::int64_t bytes);

/// "pp4 m16 1f1b | stage 0: 8 × tp1 dp2 zero3 | ... | vocabulary tp2": a plan in a few lines for
/// people. Of `devices` in the cluster some may be idle; 0: not said.
std::string describe(const plan::Plan& plan, std::int64_t devices = 0);
/// The same on one line for tables.
std::string one_line(const plan::Plan& plan);

/// Where prices came from: "compute measured, communication measured".
std::string describe_origin(const costmodel::CostModel& cost);
/// How far a prediction may be off: costmodel/uncertainty/uncertainty.h.
struct Doubt {
  costmodel::Uncertainty uncertainty;
  costmodel::Band band;
};
/// "-7.3 %, +8.2 %".
std::string percents(const costmodel::Band& band);
/// "band: 3.71 s to 4.37 s (-7.3 %, +8.2 %: why)": where the step time lies with a chance of 80 %.
std::string describe_band(const Doubt& doubt, std::int64_t step_ps);

/// {"compute": "measured" | "datasheet", "communication": ...}; with a doubt its "band" as well.
base::Json origin_json(const costmodel::CostModel& cost);
base::Json origin_json(const costmodel::CostModel& cost, const Doubt& doubt);

/// An answer's first plan and runners-up in the same draws of the errors of prices.
struct AnswerDoubt {
  Doubt best;
  // [runner-up] of the draws in which it is faster than the first; those beyond the end were not
  // drawn
  std::vector<double> share_faster;
};
base::Result<AnswerDoubt> doubt_of(const search::PlanAnswer& answer,
                                   const costmodel::CostModel& cost);

base::Json to_json(const search::PlanAnswer& answer, const costmodel::CostModel& cost,
                   const std::optional<AnswerDoubt>& doubt, std::optional<double> seconds = {});

/// " in 0.123 s", or nothing: what a search took differs from run to run, so only --timing asks.
std::string describe_seconds(std::optional<double> seconds);

/// {"schema": "orrery.check/1", "holds": …}
base::Json to_json(const search::CheckReport& report);

/// The same for people: cost, memory of every stage, bound and gap, each "ok" or "fault".
std::string describe(const search::CheckReport& report);

/// Prints a document to stdout.
void print_json(const base::Json& document);

}  // namespace orrery::cli
