#pragma once
/// \file
/// The fastest partition of every operator of a stack of equal layers, and what conventional
/// partitioning makes of the same layers.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "costmodel/cost_model.h"
#include "search/partition/partition_prices.h"
#include "search/partition/segmented_program.h"

namespace orrery::search {

struct PartitionRequest {
  int bits = 0;                // 2^bits devices
  std::int64_t sequences = 0;  // of a micro-batch, over all devices
  std::int64_t tokens = 0;     // of a sequence
  int layers = 1;
  /// Picoseconds that a byte of parameters, their states and stashed tensors on a device is worth.
  double memory_weight = 0;
  int skews = 0;                 // of primitives
  bool primitives = true;        // without: splits alone
  bool fused_attention = false;  // where devices have whole heads
  PartitionStep step = {};
  std::map<std::string, plan::Sequence> fixed = {};  // by operator's name
};

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

  /// Picoseconds of a tick.
  std::int64_t tick_ps() const { return tick_ps_; }
  const LayerTables& tables() const { return tables_; }

 private:
  PartitionSearch(const costmodel::CostModel& cost, const PartitionRequest& request);
  PartitionAnswer answer(const std::vector<LayerPlans>& layers) const;
  std::optional<int> plan_of(int op, const plan::Sequence& sequence) const;
  void price_operators();
  void price_fused();
  void choose_tick();
  Ticks node_ticks(const OperatorPrice& price) const;
  void price_tables();
  bool solve();
  EdgeTable edge(int from, int to, TickMatrix& scratch) const;
  struct Moves {
    std::int64_t elements = 0;
    // [class] layout of the output; [column] what is read, and its gradient
    std::vector<plan::Layout64> held = {}, wanted = {}, gradients = {};
    // half of an all-reduce of the output, of the gradient
    std::vector<Ticks> scatter = {}, gradient_scatter = {};
  };
  void add_moves(const Moves& moves, TickMatrix& back, TickMatrix& cost) const;
  bool hands_on_sum(int op) const;
  int forward_runs() const { return request_.step.recomputes ? 2 : 1; }
  /// Adds what all tensors cost that go from one operator to the other.
  void add_moves(int from, std::size_t from_plan, int to, std::size_t to_plan,
                 OperatorChoice& choice) const;

  PartitionRequest request_;
  PartitionPrices prices_;
  std::vector<std::vector<plan::Partition>> plans_;  // [operator]
  std::vector<std::vector<OperatorPrice>> priced_;   // [operator][plan]
  std::vector<std::vector<int>> classes_;            // [operator][plan]
  std::vector<std::optional<OperatorPrice>> fused_;  // [plan of the values], if it may be
  std::int64_t tick_ps_ = 1;
  LayerTables tables_;
  std::vector<LayerPlans> best_;
};

}  // namespace orrery::search
