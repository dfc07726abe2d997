#pragma once
/// \file
/// The lower bound that stated multipliers prove, for the checker: nothing here includes or calls
/// the search (of it the checker sees data: planner.h, multipliers.h). The space is enumerated in
/// stated_space.h, what its parts take is in stage_parts.h.
///
/// One problem: p pipeline ranks, v virtual stages on each (stage s on rank r(s) = s mod p), m
/// micro-batches, a schedule, a vocabulary. From costmodel/closed_form/closed_form.h with Z and U
/// those of rank 0, every plan costs at least
///
///     Σ_s o_s + κ max_r Σ_{s on r} N_s + max_r Σ_{s on r} d_s,
///     N = F + B + W,    κ = m - 1, interleaved m,
///
///   o_s  s < p: F + B'; interleaved, s = p - 1: less N; ZB-H1: W' of stage 0, less W of every
///        other stage (of the p - 1 or less smallest min(F, B, W) that closed_form.h takes away
///        none is above it); on rank 0 the update
///   d_s  s >= p: B' - B
///
/// and its memory, when rank r's first backward begins with h_s micro-batches forwarded by stage s,
/// is at least Σ_{s on r} b_s with
///
///   b_s  persistent + h_s (forward's change of bytes) of every part; changes of layout telescope:
///        a layer holds its own input. v = 1: and the least that stands beside while the backward
///        begins: the last layer's backward, its gradient, what the last send still reads; from the
///        second micro-batch on also the gradient sent back; or the head's own peak.
///
/// For weights w_r >= 0, Σ w_r <= 1 (a maximum is no less than a mean) and prices μ_r >= 0 (a plan
/// that fits pays nothing) therefore
///
///     V_s(n)  = n min over strategies of [α o + β N + γ d + μ b]
///               + the same of the stage's own parts - μ (budget, once for a rank)
///     mean    min over counts n_s, Σ n_s = layers, of Σ_s V_s(n_s),          α = 1, β = κ w, γ = w
///     split   the same with β = γ = 0, plus κ min over counts of max_s V_s,  α = 0, β = 1, γ = 0
///
/// and L(w, μ) = max(mean, split) never exceeds the closed form of a plan that fits. v = 1: for
/// every n the best of the stated prices and 0. v > 1: one price for a rank, and in place of the
/// second minimum ceil(layers / p) min N, the share of some rank. By the plain recurrence over
/// (stages behind, layers before), in 128 bits that are checked for overflow, rounded up once.
/// Changes of layout inside a stage count nothing. Lagrangian relaxation: Geoffrion, Mathematical
/// Programming Study 2 (1974). A problem without stated multipliers gets L(1/p, 0).
///
/// Example (MultiplierBound.WorkedExample works one by hand): p = m = 1, one layer with options
/// (o, b) = (4, 2), (1, 8), budget 5, μ = 1/2: min(5, 5) - 5/2, rounded up 3; the plan that fits
/// costs 4.
#include <cstdint>
#include <optional>

#include "costmodel/closed_form/layer_costs.h"
#include "search/proof/certificate.h"
#include "search/proof/stated_space.h"

namespace orrery::search {

/// L in ps of one problem: `k` names the vocabulary, the weights and the prices (its other fields
/// are the family's). `budget_bytes`: of the Program's buffers on a device. kBeyondAnyCost: nothing
/// fits. Nothing: the numbers are no multipliers, or leave 128 bits.
std::optional<std::int64_t> multiplier_bound(costmodel::LayerCosts& costs, const Space& space,
                                             const Family& family, const ProblemMultipliers& k,
                                             std::int64_t budget_bytes);

/// The least over all problems of the stated space.
struct SpaceBound {
  std::int64_t bound_ps = 0;
  bool malformed = false;   // some numbers are no multipliers, or leave 128 bits
  bool holds_plan = false;  // `plan` is one of the space
};
SpaceBound space_bound(costmodel::LayerCosts& costs, const SpaceProof& proof,
                       const plan::Plan& plan, std::int64_t budget_bytes);

}  // namespace orrery::search
