#pragma once
/// \file
/// Energy of a step that has run: what its operations draw, and on which hosts its ranks are.
#include "sim/report/energy.h"
#include "sim/report/step_report.h"

namespace orrery::sim {

/// Communication leaves the host where the group or the peer of the first rank of a class does.
/// @pre MachinePower::of() the topology of the prices, and the step takes time.
StepEnergy energy_of(const plan::Program& program, const costmodel::CostModel& cost,
                     const FinishedStep& finished);

}  // namespace orrery::sim
