#pragma once
#include "base/json_fwd.h"
#include "costmodel/cost_model.h"
#include "search/explain/explain.h"

namespace orrery::cli {

/// The explanation for people: sentences and aligned tables.
std::string explanation_text(const search::Explanation& e, const costmodel::CostModel& cost);

/// Its part "How sure", without the heading.
std::string trust_text(const search::Explanation& e, const costmodel::CostModel& cost);

/// A plan beside the one explained: step, parts, memory, what differs.
base::Json comparison_json(const search::Comparison& comparison);
/// Schema `orrery.explanation/1`, docs/schemas.md.
base::Json explanation_json(const search::Explanation& e, const costmodel::CostModel& cost);

}  // namespace orrery::cli
