#include "cli/training_program.h"

#include "cli/inputs.h"
#include "plan/lowering/lower.h"

namespace orrery::cli {

Result<plan::Program> training_program(const Plan& plan, const ModelSpec& model) {
  TRY_VOID(check_objective(model));
  return plan::lower(plan, model);
}

}  // namespace orrery::cli
