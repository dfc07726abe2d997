#pragma once
/// \file
/// The exact program of an instance whose layers come in a few runs of equal ones (all alike;
/// encoder and decoder): effort hardly depends on how many layers there are.
///
/// Applies when transitions are free (then equal layers anywhere make one run) or given by one
/// table that is zero within layouts and a metric between them. By the triangle inequality the
/// layers of a run that lie alike stand together, but for the layout in which a run begins and
/// ends. So an answer is a count x_{r,s} for each run r and option s, Σ_s x_{r,s} = n_r, and a
/// walk through its layouts, shortest by
///
///     P_r[o] = min over exits p of run r-1, entries i:  P_{r-1}[p] + R(p, i) + W(U_r, i, o),
///     W(U, i, o) = shortest path from i to o through all of U, i = o: the shortest round trip
///                  (if two layers lie so).
///
/// 1. For each choice of sets of layouts (C_1, …): options in C_r only, walk at least
///    H(C_1, …).
///    Without transitions that is a multiple-choice knapsack with counts; its linear relaxation
///    mixes two options of one run, at a price λ = e / d of memory, and every answer costs at
///    least L = Σ_r n_r min_s (d t + e m) - e budget + d H, plus the reduced costs of its options.
/// 2. In ascending order of L: depth first over the counts of options with the largest reduced
///    cost, while the bound is not above the best answer; the two basic options share what is left,
///    as many on the heavy one as memory allows.
///
/// State = node; all in 128-bit integers. Optimal over all choices; of equal times the least
/// memory. Source: the method of the count-vector program of layer_program.h with sets of layouts
/// for every run; linear relaxation of the multiple-choice knapsack: Sinha and Zoltners, Operations
/// Research 27 (3), 1979.
///
/// Worked example (InstanceProgram.RunsOfTwoTypes): 2 × {(time, memory) (1, 4), (3, 1)} and 1 ×
/// {(5, 2)}, free transitions, budget 7: λ = 2/3, L = (22 + 19 - 14) / 3 = 9, answer one (1, 4),
/// one (3, 1), one (5, 2): time 9, memory 7.
#include <cstdint>
#include <vector>

#include "search/programs/layer_program.h"
#include "search/table/instance.h"
#include "search/table/instance_labels.h"

namespace orrery::search {

enum class RunsOutcome : std::uint8_t { kDoesNotApply, kOptimal, kExhausted };

/// Improves `best`, which keeps the budget. kOptimal: it is the optimum; else it is the best answer
/// known.
RunsOutcome search_runs(const Instance& instance, InstanceAnswer& best, Effort& effort);

}  // namespace orrery::search
