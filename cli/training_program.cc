#include "cli/training_program.h"

#include "cli/inputs.h"
#include "plan/lowering/lower.h"

namespace orrery::cli {

Result<plan::Program> training_program(const Plan& plan, const ModelSpec& model) {
  if (plan.precision == model::Precision::kFp8Delayed)
    return refuse(ErrorCode::kUnsupported, "plan again with --precision fp8-current",
                  "{} is planned and simulated; no history of maxima is kept in training",
                  model::to_string(plan.precision));
  TRY_VOID(check_objective(model));
  return plan::lower(plan, model);
}

}  // namespace orrery::cli
