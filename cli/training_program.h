#pragma once
#include "base/result.h"
#include "model/spec.h"
#include "plan/program/plan.h"
#include "plan/program/program.h"

namespace orrery::cli {

/// The Program of a plan that is to be trained with. Errors: kUnsupported (see
/// check_objective), those of plan::lower().
base::Result<plan::Program> training_program(const plan::Plan& plan, const model::ModelSpec& model);

}  // namespace orrery::cli
