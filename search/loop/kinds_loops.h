#pragma once
/// \file
/// The outer loops for models with blocks of several kinds (T5, Swin, dense blocks before mixtures
/// of experts): outer_loops.h asks here.
///
/// Space. Kinds that differ in their entry alone (a decoder's first block, a stage's first block of
/// Swin) are one *group*. The blocks of a group share one strategy in the whole plan; groups,
/// embedding and head choose freely, and so do the cuts between pipeline stages. Schedules are
/// 1F1B, or GPipe where that alone is allowed; all devices work. What is left out stands in
/// `pruned`.
///
/// Cost, as costmodel/closed_form/closed_form.h states it. For one choice of strategies stages are
/// ranges [j, k) of layers, so their F, B, B', Z, U are differences of prefix sums, plus embedding,
/// head and the transfers f, b beside them. With p stages and m micro-batches
///
///     minimise over cuts:  s_p + v_p + (m - 1) max_i N_i,
///                          s_i = max(s_{i-1}, Z_i) + f_i + F_i,
///                          v_i = max(v_{i-1}, U_i) + b_i + B'_i
///
/// (s: the first micro-batch has come through; v: the last one's way back, and the latest update
/// behind it). N = F + B, and f + b where nothing overlaps.
///
/// Recurrence: P_i[k] = nondominated { (max(τ, N), max(s, Z) + f + F, max(v, U) + b + B') of stage
/// i with layers [j, k), if it fits : (τ, s, v) in P_{i-1}[j] }; answer the least s + v + (m - 1) τ
/// in P_p[L]. State = label; order: stages forward; O(p L²) ranges, whose memory is first bounded
/// from below by prefix sums (persistent + stashes in flight) and then asked of
/// costmodel::stage_peak_bytes, which is exact. A label dies when with the least times of the
/// layers to come it reaches the best plan. Optimal over the cuts.
///
/// Choices of strategies are taken in the order of their lower bound, memory and cuts left out:
///
///     Σ_l (F_l + B'_l) + ends + (m - 1) max( (Σ_l N_l + ends) / p, max_l N_l )
///
/// and those whose states and stashes exceed the memory of all stages together are left out: best
/// first over groups, made when needed. The loop ends where the bound reaches the best plan, which
/// is then optimal over the stated space (tests/oracle/search/kinds_test.cc), or where a problem
/// has had its effort; the answer then says how far its proof got.
/// Options of a group that another of the same layout beats in time and memory are left out
/// beforehand.
#include <cstdint>

#include "search/loop/outer_loops.h"

namespace orrery::search {

/// As run_loops. @pre cost.model().kinds() > 1. `states` counts ranges and partial choices looked
/// at; request.max_states stops it with a certified gap.
base::Result<LoopResult> run_kinds_loops(const costmodel::CostModel& cost,
                                         const PlanRequest& request, std::int64_t budget_bytes);

}  // namespace orrery::search
