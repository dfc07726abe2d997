#pragma once
/// \file
/// What there is to choose from: the plans of every operator of a layer with their prices and the
/// layouts of their outputs, and the edges between two operators.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "costmodel/cost_model.h"
#include "search/partition/edge_rows.h"
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

/// From each layout of outputs to what each plan reads.
struct PlanEdge {
  EdgeRows rows;
  std::vector<int> column;  // [plan behind]
};

class PricedPlans {
 public:
  /// @pre check_partitionable().
  PricedPlans(const costmodel::CostModel& cost, const PartitionRequest& request);

  const plan::LayerGraph& graph() const { return prices_.graph(); }
  const plan::Partition& plan(int op, int plan) const { return of(op).plans[as_index(plan)]; }
  const OperatorPrice& price(int op, int plan) const { return of(op).prices[as_index(plan)]; }
  int count(int op) const { return as_int(of(op).plans.size()); }
  /// By plan: number of its output's layout, in order of first appearance.
  const std::vector<int>& classes(int op) const { return of(op).classes; }
  std::optional<int> plan_of(int op, const plan::Sequence& sequence) const;
  /// Attention in one operation, by plan of the values, which scores have in the same order.
  std::optional<OperatorPrice> fused(int values) const;

  /// Changes of layout from plans of one operator, by class in order of first appearance among
  /// them, to plans of another one behind it; columns are what these read, in the same way.
  PlanEdge edge(int from, const PlanNumbers& from_plans, int to, const PlanNumbers& to_plans,
                std::int64_t tick_ps) const;
  /// The same of two plans alone, in picoseconds. `scatter_ps`: of all-reduces of what is read, and
  /// of its gradient.
  struct MovePrice {
    std::int64_t forward_ps = 0, backward_ps = 0, scatter_ps = 0;
  };
  MovePrice moves(int from, int from_plan, int to, int to_plan) const;

 private:
  struct OfOperator {
    std::vector<plan::Partition> plans;
    std::vector<OperatorPrice> prices;
    std::vector<int> classes;
  };
  const OfOperator& of(int op) const { return operators_[as_index(op)]; }
  OfOperator price_operator(int op);
  bool hands_on_sum(int op) const;
  std::int64_t reduce_ps(int op, int plan, int phase) const;
  int forward_runs() const { return request_.step.recomputes ? 2 : 1; }

  PartitionRequest request_;
  PartitionPrices prices_;
  std::vector<OfOperator> operators_;
  std::vector<std::optional<OperatorPrice>> fused_;  // [plan of the values], if it may be
};

}  // namespace orrery::search
