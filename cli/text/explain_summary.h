#pragma once
#include "cli/text/explained_plans.h"

namespace orrery::cli {

/// Four lines: why this plan, why not another, what limits it, what would help.
std::string explanation_summary(const search::Explanation& e, const ExplainedPlans& plans);

}  // namespace orrery::cli
