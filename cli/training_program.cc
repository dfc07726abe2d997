#include "cli/training_program.h"

#include "cli/inputs.h"
#include "plan/lowering/lower.h"

namespace orrery::cli {

Result<plan::Program> training_program(const Plan& plan, const ModelSpec& model) {
  if (model::format_of(plan.precision) != model::Format::kNone)
    return refuse(ErrorCode::kInconsistent, "plan again with --precision bf16 or fp32",
                  "{} is planned and simulated; training runs in bf16 and fp32",
                  model::to_string(plan.precision));
  TRY_VOID(check_objective(model));
  return plan::lower(plan, model);
}

}  // namespace orrery::cli
