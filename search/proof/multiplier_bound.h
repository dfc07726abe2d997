#pragma once
/// \file
/// The lower bound that stated multipliers prove, for the checker: nothing here includes or calls
/// the search (of it the checker sees data: planner.h, multipliers.h). The space is enumerated in
/// stated_space.h, what its parts take is in stage_parts.h.
///
/// One problem: p stages, m micro-batches, 1F1B or GPipe, a vocabulary. From
/// costmodel/closed_form/closed_form.h with Z and U those of the first stage, every plan costs at
/// least
///
///     Σ_s o_s + (m - 1) max_s N_s,
///     N = F + B,    o = F + B', of the first stage also the update
///
/// and its memory, when stage s has h_s micro-batches forwarded as its first backward begins, is at
/// least
///
///   b_s  persistent + h_s (forward's change of bytes) of every part; changes of layout telescope:
///        a layer holds its own input. And the least that stands beside while the backward begins:
///        the last layer's backward, its gradient, what the last send still reads; from the second
///        micro-batch on also the gradient sent back; or the head's own peak. Blocks of several
///        kinds: persistent + h_s stash of every block alone.
///
/// For weights w_s >= 0, Σ w_s <= 1 (a maximum is no less than a mean) and prices μ_s >= 0 (a
/// plan that fits pays nothing) therefore, of a stage with layers [j, k),
///
///     V_s(j, k)  = Σ_l min over the strategies of layer l of [α o + β N + μ b]
///                  + the same of the stage's own parts - μ budget
///     mean       min over cuts of Σ_s V_s,                              α = 1, β = (m - 1) w
///     split      the same with β = 0, plus (m - 1) min over cuts of max_s V_s,  α = 0, β = 1
///
/// and L(w, μ) = max(mean, split) never exceeds the closed form of a plan that fits. Of every
/// range the best of the stated prices and 0 counts. By the plain recurrence over (stages behind,
/// layers before), in 128 bits that are checked for overflow, rounded up once. Changes of layout
/// inside a stage count nothing, nor that blocks of a kind share a strategy. Lagrangian relaxation:
/// Geoffrion, Mathematical Programming Study 2 (1974). A problem without stated multipliers gets
/// L(1/p, 0).
///
/// Example (MultiplierBound.WorkedExample works one by hand): p = m = 1, one layer with options
/// (o, b) = (4, 2), (1, 8), budget 5, μ = 1/2: min(5, 5) - 5/2, rounded up 3; the plan that fits
/// costs 4.
#include <cstdint>
#include <optional>

#include "costmodel/closed_form/layer_costs.h"
#include "costmodel/memory_limit.h"
#include "search/proof/certificate.h"
#include "search/proof/stage_parts.h"

namespace orrery::search {

/// The problems of one family.
class FamilyBound {
 public:
  /// `budget`: of the Program's buffers on a device. `costs` must outlive this object.
  FamilyBound(costmodel::LayerCosts& costs, const Space& space, const Family& family,
              costmodel::MemoryLimit budget);

  /// L in ps; kBeyondAnyCost: nothing fits. Of `k` the weights and the prices count. Nothing: the
  /// numbers are no multipliers, or leave 128 bits.
  std::optional<std::int64_t> of(const plan::LayerStrategy& vocabulary,
                                 const ProblemMultipliers& k);
  /// Whether some strategy stands for every kind of block.
  [[nodiscard]] bool has_plans() const { return parts_.has_value(); }
  /// Whether the plan, but for its vocabulary, is of the family.
  [[nodiscard]] bool holds(const plan::Plan& plan) const;
  /// Strategies and ranges of layers looked at under a price so far, and what as much time went to.
  [[nodiscard]] std::uint64_t looks() const { return looks_; }

 private:
  costmodel::LayerCosts& costs_;
  Family family_;
  costmodel::MemoryLimit budget_;
  bool even_stages_;
  std::vector<std::vector<plan::LayerStrategy>> strategies_;  // [kind]
  std::optional<StageParts> parts_;
  std::uint64_t looks_ = 0;
};

/// The least over all problems of the stated space.
struct SpaceBound {
  std::int64_t bound_ps = 0;
  bool malformed = false;   // some numbers are no multipliers, or leave 128 bits
  bool holds_plan = false;  // `plan` is one of the space
};
SpaceBound space_bound(costmodel::LayerCosts& costs, const SpaceProof& proof,
                       const plan::Plan& plan, const costmodel::MemoryLimit& budget);

}  // namespace orrery::search
