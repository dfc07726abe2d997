#pragma once
#include "plan/program/plan.h"

namespace orrery::plan {

/// What keeps a run of partitioned layers from being lowered; `field`: where the run stands in the
/// plan. Errors: kUnsupported for models and plans that partitions do not know, kInconsistent for a
/// sequence that is not in its operator's space, and for degrees of other layers that no id bits
/// say.
base::Diagnostics partition_faults(const Plan& plan, const LayerRun& run, const std::string& field,
                                   const model::ModelSpec& model);

}  // namespace orrery::plan
