#pragma once
/// What every test that looks at an answer asks: does the independent checker accept its
/// certificate?
#include <string>

#include "search/loop/planner.h"
#include "search/proof/certificate_check.h"
#include "search/proof/certificate_json.h"

namespace orrery::search {

/// The checker's first fault; empty: the certificate holds, or there is no plan to check.
inline std::string checkers_fault(const costmodel::CostModel& cost, const PlanAnswer& answer) {
  std::string fault = answer.candidates.empty() ? "" : "no candidate has the certificate's cost";
  for (const Candidate& c : answer.candidates) {
    if (c.closed_form_ps != answer.certificate.cost_ps) continue;
    const auto report = check_plan(cost, c.plan, claim_of(answer.certificate));
    if (!report) return base::to_string(report.error());
    if (report->holds()) return "";
    fault = report->faults.front();
  }
  return fault;
}

}  // namespace orrery::search
