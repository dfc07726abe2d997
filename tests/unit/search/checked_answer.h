#pragma once
/// What every test that looks at an answer asks: does the independent checker accept its
/// certificate?
#include <string>
#include <utility>
#include <vector>

#include "search/loop/planner.h"
#include "search/proof/certificate_check.h"
#include "search/proof/certificate_json.h"

namespace orrery::search {

/// The checker's first fault; empty: the certificate holds, or there is no plan to check.
inline std::string checkers_fault(const costmodel::CostModel& cost, const PlanAnswer& answer) {
  std::vector<std::pair<std::int64_t, const plan::Plan*>> plans;
  for (const Candidate& c : answer.candidates) plans.emplace_back(c.closed_form_ps, &c.plan);
  for (const RunnerUp& r : answer.runners_up) plans.emplace_back(r.closed_form_ps, &r.plan);
  std::string fault = plans.empty() ? "" : "no plan has the certificate's cost";
  for (const auto& [closed_form_ps, plan] : plans) {
    if (closed_form_ps != answer.certificate.cost_ps) continue;
    const auto report = check_plan(cost, *plan, claim_of(answer.certificate));
    if (!report) return base::to_string(report.error());
    if (report->holds()) return "";
    fault = report->faults.front();
  }
  return fault;
}

}  // namespace orrery::search
