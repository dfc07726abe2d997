#pragma once
/// What `plan` asks of the search, and `sweep` at each of its points.
#include <optional>
#include <vector>

#include "cli/inputs.h"
#include "search/loop/planner.h"
#include "search/loop/targets.h"

namespace orrery::cli {

/// --minimise: what a plan takes least of (minimise.h).
enum class Minimise : std::uint8_t { kTime, kMoney, kEnergy };
std::string_view to_string(Minimise what);

struct PlanQuestion {
  std::optional<search::Target> target;
  Minimise minimise = Minimise::kTime;
  Scene scene;
  search::PlanRequest request;
};

/// Rows that state it. `needed`: a model and a cluster must be given. `max_states`: the default
/// effort of a search, in states of the dynamic program.
std::vector<base::OptionSpec> question_options(bool needed, const char* max_states = "20000000");
/// `hosts`: in place of those that the options name.
Result<PlanQuestion> question_of(const base::Options& options, std::optional<int> hosts = {});
Result<search::PlanAnswer> answer_to(const PlanQuestion& question);

}  // namespace orrery::cli
