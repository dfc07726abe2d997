#pragma once
/// \file
/// What a step that has run says: SimReport of the classes that stand for the stages.
#include <cstdint>
#include <vector>

#include "base/fingerprint.h"
#include "sim/report/report.h"
#include "sim/step/interpreter.h"
#include "sim/step/prepared_step.h"

namespace orrery::sim {

struct FinishedStep {
  const PreparedStep& step;
  const FlowNetwork& network;
  const Outcome& outcome;
  std::vector<std::uint32_t> shown;          // [stage] the class that stands for it
  std::vector<int> rank;                     // [stage] a rank of that class
  std::vector<std::uint32_t> class_of_rank;  // [rank of the plan]
};

/// Error: kInconsistent when the Program needs more devices than there are, or another precision
/// than the prices'.
base::Result<void> check_fits(const plan::Program& program, const costmodel::CostModel& cost);

/// Everything but the fingerprint.
SimReport step_report(const plan::Program& program, const costmodel::CostModel& cost,
                      const FinishedStep& finished, const SimOptions& options);

/// Start and end of every operation, in issue order.
void add_times(const ClassOutcome& outcome, base::Fingerprint& fingerprint);

}  // namespace orrery::sim
