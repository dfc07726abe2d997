#pragma once
/// \file
/// First answers of an instance from the two paths between which its Lagrangian bound lies
/// (instance_dual.h).
///
/// At the best price λ a path a over the budget and a path b within it cost the same, so a up to
/// some layer and b from there (or the other way round) costs L(λ) + one transition + what the
/// budget has left, times λ: the more layers, the nearer. Then layer by layer, passes over the
/// chain put the fastest option that still fits in the place of the present one, until nothing
/// changes. No proof of anything: the bound says how good it is. Without this, tables whose options
/// lie on one line had answers 10 % and more above the bound.
///
/// Cost: O(layers) for all joints, O(layers · options) a pass, at most kPasses.
/// Worked example (InstanceProgram.FirstAnswersJoinTwoPaths): three layers of options (time,
/// memory) (1, 8) and (4, 2), budget 18: a = (3, 24), b = (12, 6), λ = 1/2. Two layers of a and
/// one of b: (6, 18), and L = 3 + (24 - 18) / 2 = 6.
#include <cstdint>
#include <vector>

#include "search/table/instance_labels.h"

namespace orrery::search {

/// Makes `best` faster where it can. @pre `best` keeps the budget; `beyond` is a path over the
/// budget, or empty.
void repair(const Instance& instance, const OptionPath& beyond, InstanceAnswer& best);

}  // namespace orrery::search
