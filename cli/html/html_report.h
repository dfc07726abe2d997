#pragma once
/// \file
/// `orrery simulate --html`: one file that opens from disk and needs no network: cli/html/assets/
/// (page, style, script) with the numbers in it.

#include "base/json_fwd.h"
#include "base/result.h"
#include "costmodel/cost_model.h"
#include "plan/program/plan.h"
#include "sim/simulate.h"

namespace orrery::cli {

/// What the page draws. Times are nanoseconds. `scenario`: what it costs, for people; empty without
/// one. @pre the report has its picture.
base::Json html_data(const plan::Plan& plan, const costmodel::CostModel& cost,
                     const sim::SimReport& report, std::int64_t memory_limit_bytes,
                     const std::string& scenario);

/// The page around the data. Error: kNotFound when the page's parts are not installed.
base::Result<std::string> html_page(const base::Json& data);

}  // namespace orrery::cli
