#pragma once
/// \file
/// The numbers in the page of `orrery explain --html` (page.h): the document, and what the page
/// says in words.
#include "base/json_fwd.h"
#include "costmodel/cost_model.h"
#include "search/explain/explain.h"

namespace orrery::cli {

base::Json explanation_page(const search::Explanation& e, const costmodel::CostModel& cost);

}  // namespace orrery::cli
