#pragma once
#include "base/json_fwd.h"
#include "costmodel/cost_model.h"
#include "search/explain/explain.h"

namespace orrery::cli {

/// The explanation for people: sentences and aligned tables.
std::string explanation_text(const search::Explanation& e, const costmodel::CostModel& cost);

/// Schema `orrery.explanation/1`, docs/schemas.md.
base::Json explanation_json(const search::Explanation& e, const costmodel::CostModel& cost);

}  // namespace orrery::cli
