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
/// Where only some kinds of blocks have experts, only those split them.
///
/// A plan has p ranks, v virtual stages, m micro-batches and L layers, n_rk of kind k on rank r,
/// whose passes take N_k = F + B + W. The way there and back takes c a stage at least:
/// ⌊L/pv⌋ min_k N_k; of ZB-H1, where weights fill it, ⌊L/p⌋ max(F, B, F + B - W), each
/// the least of any kind (⌊L/p⌋ F where m < p). So a step takes at least ⌊L/p⌋ updates of a
/// layer, what ZeRO-3 holds between the 2 m v passes of a rank (the gather of a layer, behind what
/// a backward reduces in every micro-batch, beyond the layer that it runs beside) and, whatever r,
///
///     m (Σ_k n_rk N_k + embedding where r = 0 + head where r = p - 1) + r c
///
/// what the rank computes, and the way to it and back (and all that layers draw, where energy is
/// minimised). In a V the first rank has the head as well,
/// and the way counts nothing. Of what has been found the best by expected time cuts off all that
/// is far behind it.
#include <cstdint>
#include <vector>

#include "search/costs/stage_model.h"
#include "search/loop/candidates.h"

namespace orrery::search {

struct UniformPlans {
  std::vector<Finalist> found;  // in the order of enumeration
  bool exhausted = false;       // a fixed effort of pricing ended before all were looked at
};
/// @pre the request is one that find_plan takes; `stages` is of its space and batch.
UniformPlans uniform_plans(StageModel& stages, const PlanRequest& request, const Contest& known);

}  // namespace orrery::search
