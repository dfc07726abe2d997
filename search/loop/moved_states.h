#pragma once
/// \file
/// Plans that need more memory than there is, with optimizer states moved to the host.
#include <optional>

#include "costmodel/closed_form/layer_costs.h"
#include "costmodel/memory_limit.h"
#include "plan/program/plan.h"

namespace orrery::search {

/// The plan with the states of so many layers on the host that every rank's buffers fit: of a rank
/// the last layers first, then embedding and head. Nothing where all of them are not enough, or the
/// plan is not valid.
std::optional<plan::Plan> with_states_moved(costmodel::LayerCosts& costs, plan::Plan plan,
                                            const costmodel::MemoryLimit& budget);

}  // namespace orrery::search
