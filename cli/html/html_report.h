#pragma once
/// \file
/// The numbers in the page of `orrery simulate --html` (page.h), `orrery.picture/1`.
#include <string>

#include "base/json_fwd.h"
#include "costmodel/cost_model.h"
#include "plan/program/plan.h"
#include "sim/simulate.h"

namespace orrery::cli {

/// What a page says in words.
struct StepWords {
  std::string band;      // where the step time lies
  std::string scenario;  // what it costs; empty without one
};
/// What the page draws. Times are nanoseconds. @pre the report has its picture.
base::Json html_data(const plan::Plan& plan, const costmodel::CostModel& cost,
                     const sim::SimReport& report, std::int64_t memory_limit_bytes,
                     const StepWords& words);

}  // namespace orrery::cli
