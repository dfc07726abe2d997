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
/// A plan of p > 1 ranks, v virtual stages, m micro-batches and L layers whose passes take N = F +
/// B + W each, with c = ⌊L/pv⌋ (N, of ZB-H1 less min(F, B, W)) for one pass through a stage,
/// costs at least ⌊L/p⌋ updates of a layer, what ZeRO-3 holds between the 2 m v passes of a
/// rank (the gather of a layer, behind what a backward reduces in every micro-batch, beyond the
/// layer that it runs beside) and the largest of
///
///     m ⌈L/p⌉ N + (p - 2) c              a rank with most layers, and the way to it and back
///     m (n_p N + head) + (p - 1) c       the last rank, of n_p layers
///     m (n_1 N + embedding)              the first
///
/// Blocks of several kinds: m times the mean over ranks instead.
#include <cstdint>
#include <vector>

#include "search/costs/stage_model.h"
#include "search/loop/candidates.h"

namespace orrery::search {

/// In the order of enumeration, as far as a fixed effort of pricing goes. @pre the request is one
/// that find_plan takes; `stages` is of its space and batch.
std::vector<Finalist> uniform_plans(StageModel& stages, const PlanRequest& request,
                                    const Contest& known);

}  // namespace orrery::search
