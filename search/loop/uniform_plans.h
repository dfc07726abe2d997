#pragma once
/// \file
/// Plans that give all layers one strategy and spread them evenly over the pipeline
/// (plan::uniform_plan), of every schedule: the grid that people sweep by hand.
///
/// The programs of the search rank plans by the closed form, which cannot say who waits for whom
/// where stages differ. So what it proves best may be beaten, in simulation, by a plan that it
/// thinks worse. These plans are priced pass by pass (costmodel/closed_form/step_times.h); all that
/// may be faster than what is known are given, and the simulator decides.
///
/// A plan of p ranks, v virtual stages, m micro-batches and L layers whose passes take N = F + B +
/// W each costs at least
///
///     m ⌈L/p⌉ N + (p - 2) ⌊L/pv⌋ (N - min(F, B, W)),
///
/// the work of a rank with most layers, and what must have passed through the others before or
/// after it. Blocks of several kinds: the mean over ranks in place of ⌈L/p⌉ N.
#include <cstdint>
#include <vector>

#include "costmodel/closed_form/layer_costs.h"
#include "search/loop/candidates.h"

namespace orrery::search {

/// In the order of enumeration. `budget_bytes`: what the Program's buffers may take on a device.
/// @pre the request is one that find_plan takes.
std::vector<Finalist> uniform_plans(costmodel::LayerCosts& costs, const PlanRequest& request,
                                    std::int64_t budget_bytes, const Contest& known);

}  // namespace orrery::search
