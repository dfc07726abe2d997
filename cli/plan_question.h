#pragma once
/// What `plan` asks of the search, and `sweep` at each of its points.
#include <optional>
#include <vector>

#include "cli/inputs.h"
#include "search/loop/planner.h"
#include "search/loop/targets.h"

namespace orrery::cli {

struct PlanQuestion {
  std::optional<search::Target> target;
  Scene scene;
  search::PlanRequest request;
};

/// Rows that state it. `needed`: a model and a cluster must be given. `max_states`: the default
/// effort of a search, in states of the dynamic program.
std::vector<base::OptionSpec> question_options(bool needed, const char* max_states = "20000000");
Result<PlanQuestion> question_of(const base::Options& options);
Result<search::PlanAnswer> answer_to(const PlanQuestion& question);

}  // namespace orrery::cli
