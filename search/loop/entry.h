#pragma once
#include <cstdint>
#include <string>

#include "search/costs/stage_model.h"

namespace orrery::search {

/// A problem, or a family: all vocabularies of one.
struct Entry {
  PlanProblem problem;
  bool family = false;
  bool priced = false;  // of a family: the bound knows of communication
  std::int64_t bound_ps = 0;
  std::int64_t sharp_below_ps = 0;  // below this the bound knows of memory
  bool settled = false;             // solved, or cut with its reason
  bool answered = false;            // with a plan, or tried as a runner-up
  std::int64_t quick_bound_ps = 0;

  [[nodiscard]] std::string name() const {
    return family ? family_name(problem) : to_string(problem);
  }
};

}  // namespace orrery::search
