#pragma once
/// \file
/// One answer from those of the parts that a space was taken apart into: strategies of a target
/// (targets.h), orders of a mixed cluster's devices, places of optimizer states (planner.h).
///
/// The fastest in simulation is the answer; the certificate is that of the part whose best plan is
/// cheapest by closed form, its bounds the least of all parts, which is what bounds the union.
#include "search/loop/planner.h"

namespace orrery::search {

/// Folds the answer of one part into that of all: what bounds them all stands for every one. @pre
/// `all` starts as PlanAnswer{}.
void merge_answer(PlanAnswer part, PlanAnswer& all);
/// What other parts must beat, beside what is known. Closed forms are not the last word: a little
/// above the best one a plan may still be faster in simulation.
KnownPlan known_of(const PlanAnswer& answer, KnownPlan known);
/// When all are in: by simulated time, the `top` best and the one that the certificate speaks of.
void order_answer(PlanAnswer& answer, int top);

}  // namespace orrery::search
