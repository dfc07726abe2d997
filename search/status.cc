#include "search/status.h"

namespace orrery::search {

std::string_view to_string(Status s) {
  switch (s) {
    case Status::kOptimal: return "optimal";
    case Status::kInfeasible: return "infeasible";
    case Status::kBudget: return "budget";
  }
  return "";
}

}  // namespace orrery::search
