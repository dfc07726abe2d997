#pragma once
#include "base/result.h"
#include "costmodel/cost_model.h"
#include "plan/program/program.h"
#include "sim/report/report.h"

namespace orrery::sim {

/// Runs the Program on a virtual clock. Deterministic: same inputs, same picoseconds and
/// fingerprint. Errors: kInconsistent when the Program cannot progress (says which operations wait
/// for what).
base::Result<SimReport> simulate(const plan::Program& program, const costmodel::CostModel& cost,
                                 const SimOptions& options = {});

}  // namespace orrery::sim
