#pragma once
/// \file
/// Symmetry folding: equivalent lanes and constraints of a flow system become one each.
///
/// Let a partition of lanes and constraints satisfy, cell by cell:
///  * a lane: the same bytes, latency, rate u, repeats, the same set of constraint cells, the same
///    set of (cell waited for, distance);
///  * a constraint: the same capacity at all times, the same sum of flows from each lane cell.
/// Then lanes of one cell start and end at the same picoseconds, instance by instance. Proof by
/// induction over the instants, and within one over the rounds of filling. Which lanes are on the
/// wire is a union of cells, since a start is the last end over cells waited for. So for each
/// constraint of a cell what is left and the weight that rises, R_l and A_l, are equal, round by
/// round: a lane stops at the least level over its constraint cells, or at u. Rates, hence ends,
/// are equal in a cell. No automorphism is needed.
///
/// So one lane for each lane cell, and one constraint for each constraint cell with the summed
/// flows as weights, run to the same times: sums and divisions are of the same integers.
///
/// The partition is the coarsest that is equitable (kernel/refinement.h), which asks for equal
/// counts where sets would do. A repeated transfer is one element, so what is refined is one step,
/// not the graph of all steps. An asymmetry (a slow link, a straggler) splits the cells that it
/// reaches, and no others.
#include "sim/network/flow_system.h"

namespace orrery::sim {

struct Fold {
  FlowSystem system;  // one lane for each cell
  std::vector<std::uint32_t> cell_of_lane;
};

[[nodiscard]] Fold fold(const FlowSystem& system);

}  // namespace orrery::sim
