#pragma once
/// \file
/// Costs of layers, each found once: what plan_cost and the search price plans with.
///
/// A layer's templates say the same for every size of micro-batch: with b sequences on a rank,
/// shapes of segments and bytes of activations are b times those of one sequence; weights and
/// gradients are not. And its ZeRO stage changes only what weights and gradients take. So a layer
/// is lowered once for each (layout, recomputation) with b = 1, under ZeRO-3 with gradients reduced
/// per micro-batch; its weights' part (gather, reduction, update) once for each way of sharding;
/// both are priced for any b and joined: without gathers the weights that a body frees are none,
/// without parts it zeroes none. Where zero 3 shards attention or MLP alone the other one has
/// neither; a body that works in slices gathers and reduces them itself, and is lowered once for
/// each strategy. Equal in every field to a lowering of the layer's own
/// (tests/property/costmodel/fresh_layer_cost.h).
#include <cstdint>
#include <memory>
#include <vector>

#include "costmodel/closed_form/closed_form.h"
#include "costmodel/closed_form/step_times.h"
#include "costmodel/cost_model.h"
#include "plan/lowering/lower.h"
#include "plan/program/schedule.h"

namespace orrery::costmodel {

/// Not thread-safe: one per search. References stay valid as long as the object. `cost` must
/// outlive it.
class LayerCosts {
 public:
  /// Of energy: LayerCost::energy_ps is set, every call has one global batch. @pre then
  /// MachinePower::of() the topology.
  explicit LayerCosts(const CostModel& cost, Objective objective = Objective::kTime);
  /// Of a draw of the model that `like` is of: what is lowered, which links are loaded and what
  /// memory is taken is found once for both. Neither may be used while the other is.
  LayerCosts(const CostModel& drawn, const LayerCosts& like);
  ~LayerCosts();
  LayerCosts(const LayerCosts&) = delete;
  LayerCosts& operator=(const LayerCosts&) = delete;

  /// As in closed_form.h, on ranks [first_rank, first_rank + rank_count). @pre dp of the strategy
  /// divides the micro-batch; everything of `context` but micro_batches, micro_batch_sequences and
  /// stages is the same in all calls.
  const LayerCost& block(const plan::LayerStrategy& strategy, const plan::LayerContext& context,
                         int first_rank, int rank_count);
  /// Or partitioned: lowered once for each size of micro-batch.
  const LayerCost& block(const plan::LayerRun& run, const plan::LayerContext& context,
                         int first_rank, int rank_count);
  /// At most what block() says: what computes, without weights and their gradients. Costs a small
  /// part of that. 0: not known.
  struct Floor {
    std::int64_t passes_ps = 0;  // of forward_ps + backward_ps
    std::int64_t weight_ps = 0;
    std::int64_t energy_ps = 0;  // on no ranks: 0
    std::int64_t sum_ps() const { return passes_ps + weight_ps; }
  };
  /// On no ranks: of computation alone.
  Floor block_floor(const plan::LayerStrategy& strategy, const plan::LayerContext& context,
                    int first_rank, int rank_count);
  const LayerCost& embedding(const plan::LayerStrategy& vocabulary,
                             const plan::LayerContext& context, int first_rank, int rank_count);
  const LayerCost& head(const plan::LayerStrategy& vocabulary, const plan::LayerContext& context,
                        int first_rank, int rank_count);
  const LayerCost& reshard(const plan::LayerStrategy& from, const plan::LayerStrategy& to,
                           const plan::LayerContext& context, int first_rank, int rank_count);
  const LayerCost& reshard(const plan::LayerRun& from, const plan::LayerRun& to,
                           const plan::LayerContext& context, int first_rank, int rank_count);
  const CostModel& cost() const;
  Objective objective() const;
  /// Routes that prices of groups looked up so far: most of the time on large clusters.
  std::uint64_t routes() const;
  /// Operations of layers that were priced so far; one that was lowered counts as several.
  std::uint64_t priced() const;
  /// First rank of the window that stands for [first_rank, first_rank + rank_count): layers cost
  /// the same on both (rank_windows.h).
  int canonical_rank(int first_rank, int rank_count);
  /// plan::pass_order(), made once.
  const std::vector<plan::PassNode>& pass_order(plan::Schedule schedule, int rank, int ranks,
                                                int virtual_stages, std::int64_t micro_batches);
  PassOrders& pass_orders();
  /// Time of CostModel::exchange().
  std::int64_t exchange_ps(int first_rank, int rank_count, int peer_offset, std::int64_t bytes);

 private:
  struct Forms;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace orrery::costmodel
