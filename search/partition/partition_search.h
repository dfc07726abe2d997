#pragma once
/// \file
/// The fastest partition of every operator of a stack of equal layers, and what conventional
/// partitioning makes of the same layers.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "costmodel/cost_model.h"
#include "search/partition/chain_bounds.h"
#include "search/partition/priced_plans.h"
#include "search/partition/segmented_program.h"

namespace orrery::search {

/// Of one layer's operator.
struct OperatorChoice {
  std::string name;
  plan::Sequence sequence;
  OperatorPrice price;
  std::int64_t forward_move_ps = 0, backward_move_ps = 0;  // layout changes of what it reads
  // of all-reduces of what it reads, and of its input's gradient: what reduce-scatters save
  std::int64_t scatter_ps = 0;
};
/// One layer of several, and how many in a row are like it.
struct LayerChoice {
  int count = 1;
  std::vector<OperatorChoice> operators;  // the next stream belongs to the next layer
  std::int64_t time_ps() const;
  std::int64_t memory_bytes() const;
};
struct PartitionAnswer {
  std::vector<LayerChoice> layers;
  std::int64_t time_ps = 0;       // forward, backward and gradients of all layers
  std::int64_t memory_bytes = 0;  // a device's, of all layers
};
/// Megatron-LM's: batch over `data` devices, features and heads over the others; streams whole or,
/// with sequence parallelism, their tokens over the tensor group.
struct ConventionalAnswer {
  int data = 1, tensor = 1;
  bool sequence_parallel = false;
  PartitionAnswer answer;
};

class PartitionSearch {
 public:
  /// Errors: those of check_partitionable; kOutOfRange for times beyond counting; kBadValue for a
  /// fixed operator that there is not, or a sequence outside its space.
  static base::Result<PartitionSearch> make(const costmodel::CostModel& cost,
                                            const PartitionRequest& request);
  /// What a layer computes at least, whatever its partition: no split of an operator has less to do
  /// in F, B and G together. Errors: those of check_partitionable.
  static base::Result<std::int64_t> least_compute_ps(const costmodel::CostModel& cost,
                                                     const PartitionRequest& request);
  /// Least time + memory_weight * memory; operators and edges are rounded up to ticks.
  PartitionAnswer best() const { return answer(best_); }
  /// Every split of the devices whose tensor group divides the key heads, fewest data-parallel
  /// first.
  std::vector<ConventionalAnswer> conventional() const;
  /// One layer of the given sequences, by plan::LayerOperator up to the last product, none for the
  /// softmax of fused attention; nothing where a sequence is not in an operator's space.
  std::optional<PartitionAnswer> given(const std::vector<plan::Sequence>& sequences) const;

  /// Picoseconds of a tick, and how many the best layers take.
  std::int64_t tick_ps() const { return tick_ps_; }
  std::int64_t ticks() const { return ticks_; }
  /// The best layers' plans, as tables() numbers them.
  const std::vector<LayerPlans>& plans() const { return best_; }
  /// Of all plans, those included that the search left out.
  LayerTables tables() const;

 private:
  PartitionSearch(const costmodel::CostModel& cost, const PartitionRequest& request);
  PartitionAnswer answer(const std::vector<LayerPlans>& layers) const;
  using Kept = std::array<PlanNumbers, plan::kLayerOperators>;
  void choose_tick();
  double worth(const OperatorPrice& price) const;
  Ticks node_ticks(const OperatorPrice& price) const;
  PlanNumbers all_of(int op) const;
  Kept all_plans() const;
  OperatorTable operator_table(int op, const PlanNumbers& plans) const;
  FusedTable fused_table(const Kept& kept, const LayerTables& tables) const;
  void fill_operators(const Kept& kept, LayerTables& tables) const;
  LayerTables tables_of(const Kept& kept) const;
  ChainEdge chain_edge(int from, const PlanNumbers& behind) const;
  std::optional<PartitionProgram> solve_in_ticks() const;
  bool solve();

  PartitionRequest request_;
  PricedPlans plans_;
  std::int64_t tick_ps_ = 1, ticks_ = 0;
  std::vector<LayerPlans> best_;
};

}  // namespace orrery::search
