#pragma once
/// What collectives take in training steps over what they take alone.
///
/// Alone the ranks enter together, their buffers are warm and nothing else runs. In a step a rank
/// waits for the slowest, again and again, and its buffers are as computation left them. Steps of
/// tensor and data parallelism are trained by all ranks; over them
///
///   seconds of the collectives in a step, mean over ranks, median over steps
///     ≈  factor · Σ alone + issue_seconds · count
///
/// by least squares of relative errors (composition.h), factor ≥ 1, issue_seconds ≥ 0; alone:
/// each at its own size and group. Where communication runs beside computation its spans hold
/// waiting that the step does not: for devices on which it never does.
#include <span>

#include "executor/measure/composition.h"
#include "executor/runtime/site.h"
#include "model/profile.h"
#include "plan/program/program.h"

namespace orrery::executor {

/// All-reduces, all-gathers and reduce-scatters of one step: in it, alone (`medians`), and how
/// many. @pre the Program is for as many ranks as the site has. Errors: kCollective, kDevice.
base::Result<ComposedStep> collectives_in_step(Site& site, const plan::Program& program);

/// @pre steps is not empty, and each has collectives.
model::StepCommunication fit_step_communication(std::span<const ComposedStep> steps);

}  // namespace orrery::executor
