#pragma once
#include <chrono>
#include <optional>

#include "base/json.h"
#include "costmodel/uncertainty/uncertainty.h"
#include "plan/program/plan.h"
#include "search/loop/planner.h"
#include "search/proof/certificate_check.h"
#include "sim/simulate.h"

namespace orrery::cli {

using base::Json;
using costmodel::CostModel;
using plan::Plan;

/// "4.19 s", "36.0 GiB".
std::string show_time(std::int64_t ps);
std::string show_seconds(double seconds);
std::string show_bytes(std::int64_t bytes);
/// The stage that lacks most memory, or has least left; where all have the same limit the fullest.
struct FullestStage {
  std::int64_t peak_bytes = 0, limit_bytes = 0;
  std::int64_t kept_bytes = 0;  // of the device, beyond the limit; 0 where the limit is stated
  bool fits() const { return peak_bytes <= limit_bytes; }
};
/// "72.8 GiB of 76.4 GiB at the fullest stage; 3.6 GiB of the device are kept for ...".
std::string memory_text(const FullestStage& stage);
/// `stated_bytes`: of a device; 0: every device's own. @pre the report is of the plan, `cost` in
/// its order of devices.
FullestStage fullest_stage(const Plan& plan, const sim::SimReport& report, const CostModel& cost,
                           std::int64_t stated_bytes);

/// "pp4 m16 1f1b | stage 0: 8 × tp1 dp2 zero3 | ... | vocabulary tp2": a plan in a few lines for
/// people. Of `devices` in the cluster some may be idle; 0: not said.
std::string describe(const Plan& plan, std::int64_t devices = 0);
/// The same on one line for tables.
std::string one_line(const Plan& plan);

/// "46,702,792,704 parameters, 12,879,925,248 active for a token".
std::string parameters_text(std::int64_t all, std::int64_t active);

/// Where prices came from: "computation measured, communication from datasheets (profile 'here')".
std::string describe_origin(const CostModel& cost);
/// How far a prediction may be off: costmodel/uncertainty/uncertainty.h.
struct Doubt {
  costmodel::Uncertainty uncertainty;
  costmodel::Band band;
};
base::Result<Doubt> doubt_of(const Plan& plan, const CostModel& cost);
/// "-7.3 %, +8.2 %".
std::string percents(const costmodel::Band& band);
/// "band: 3.71 s to 4.37 s (-7.3 %, +8.2 %: why)": where the step time lies with a chance of 80 %.
std::string describe_band(const Doubt& doubt, std::int64_t step_ps);

/// {"compute": "measured" | "datasheet", "communication": ...}; with a doubt its "band" as well.
Json origin_json(const CostModel& cost);
Json origin_json(const CostModel& cost, const Doubt& doubt);

/// An answer's first plan and runners-up in the same draws of the errors of prices.
struct AnswerDoubt {
  Doubt best;
  // [runner-up] of the draws in which it is faster than the first; those beyond the end were not
  // drawn
  std::vector<double> share_faster;
};
base::Result<AnswerDoubt> doubt_of(const search::PlanAnswer& answer, const CostModel& cost);

Json to_json(const search::PlanAnswer& answer, const CostModel& cost,
             const std::optional<AnswerDoubt>& doubt, std::optional<double> seconds = {});

/// " in 0.123 s", or nothing: what a search took differs from run to run, so only --timing asks.
std::string describe_seconds(std::optional<double> seconds);

/// {"schema": "orrery.check/1", "holds": …}
Json to_json(const search::CheckReport& report);

/// The same for people: cost, memory of every stage, bound and gap, each "ok" or "fault".
std::string describe(const search::CheckReport& report);

/// A list of what `make` says of each.
template <class Range, class Make>
Json json_list(const Range& range, const Make& make) {
  Json list = Json::array();
  for (const auto& entry : range) list.push_back(make(entry));
  return list;
}

/// {"candidate": …, "reason": …} of each.
Json pruned_json(const std::vector<search::Pruned>& pruned);

/// Time since it was made.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Prints a document to stdout.
void print_json(const Json& document);

}  // namespace orrery::cli
