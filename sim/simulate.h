#pragma once
#include <cstdint>
#include <limits>
#include <optional>

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

/// SimReport::step_time_ps alone, in a small part of the time: operations that are sure to run one
/// after another are one (step/fused_program.h). Nothing when it is above `cutoff_ps`: the clock
/// stops there. Errors: as simulate().
base::Result<std::optional<std::int64_t>> simulated_step_ps(
    const plan::Program& program, const costmodel::CostModel& cost,
    std::int64_t cutoff_ps = std::numeric_limits<std::int64_t>::max());

/// About what simulated_step_ps() says of a step of more micro-batches, from `program`, the same
/// step of 2 p of them on p pipeline ranks: from then on p more take as long as, on the last rank,
/// from the first backward until that of p micro-batches later. @pre 1F1B or interleaved; no rank
/// is slower than the last. Errors: as simulate().
base::Result<std::int64_t> extrapolated_step_ps(const plan::Program& program,
                                                const costmodel::CostModel& cost,
                                                std::int64_t micro_batches);

/// The same of any pipeline with those schedules, from two shorter steps of the plan: each further
/// micro-batch takes as long as the second step's more do. @pre few.micro_batches <
/// more.micro_batches. Errors: as simulate().
base::Result<std::int64_t> extrapolated_step_ps(const plan::Program& few, const plan::Program& more,
                                                const costmodel::CostModel& cost,
                                                std::int64_t micro_batches);

/// About what simulate() says of a step of more micro-batches, from two shorter ones of the plan
/// (report/extrapolated_report.h). @pre few.micro_batches < more.micro_batches < micro_batches.
/// Errors: as simulate().
base::Result<SimReport> extrapolated_report(const plan::Program& few, const plan::Program& more,
                                            const costmodel::CostModel& cost,
                                            std::int64_t micro_batches, bool energy = false);

}  // namespace orrery::sim
