#include "search/status.h"

#include "base/ids.h"

namespace orrery::search {

std::string_view to_string(Status s) {
  return base::EnumNames<Status::kBudget>("optimal", "infeasible", "budget")[s];
}

}  // namespace orrery::search
