#pragma once
/// \file
/// What a layer may be on the ranks of an interleaved or ZB-H1 plan, and what it costs there: by
/// layout, the options that no other of the layout beats in every time and every byte, their least
/// times, and the transfers between ranks.
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "costmodel/closed_form/layer_costs.h"
#include "search/costs/pass_times.h"
#include "search/costs/stage_model.h"

namespace orrery::search {

struct RankOption {
  std::int32_t leaf = 0;  // of StageModel::layers_of
  const costmodel::LayerCost* cost = nullptr;
};

/// The least of some options.
struct RankFloor {
  std::int64_t cycle_ps = kForbidden, sync_ps = kForbidden, update_ps = kForbidden,
               energy_ps = kForbidden;  // in no sync
  // ZB-H1; unfilled: F + B - W, which per-micro-batch reductions in W may take far below 0, hence
  // its least sum with the cycle.
  std::int64_t unfilled_ps = kForbidden, cycle_and_unfilled_ps = kForbidden, filled_ps = kForbidden,
               tail_ps = kForbidden;
  void take(const costmodel::LayerCost& c);
  void take(const RankFloor& other);
};

struct RankLayout {
  plan::LayerStrategy strategy;  // one of them
  std::vector<RankOption> options;
  std::vector<std::uint32_t> by_cycle;  // options, the shortest cycle first
  RankFloor floor;
};

struct RankTable {
  std::vector<RankLayout> layouts;
};

/// Transfers between the ranks, of one layout.
struct RankTransfers {
  std::vector<std::int64_t> activation_ps, gradient_ps;  // [rank that receives]
  std::int64_t least_activation_ps = 0, least_gradient_ps = 0;
  std::int64_t once_ps = 0;  // Σ f + b of the way in and out
  std::int64_t bytes = 0;    // of one
};

/// What all vocabularies of a problem share.
struct RankFrame {
  std::vector<const RankTable*> tables;  // [rank]
  std::vector<RankFloor> floors;         // [layout] over all ranks
  std::vector<RankTransfers> transfers;  // [layout]
  [[nodiscard]] const RankLayout& layout(std::size_t rank, std::size_t layout) const {
    return tables[rank]->layouts[layout];
  }
};

class RankTables {
 public:
  /// @pre all outlive this object.
  RankTables(costmodel::LayerCosts& costs, StageModel& stages) : costs_(costs), stages_(stages) {}

  /// Of stages that begin at a rank of the cluster. @pre StageModel::layers_of(...) has leaves.
  const RankTable& table(const PlanProblem& problem, int first_rank);
  const RankFrame& frame(const PlanProblem& problem);

 private:
  [[nodiscard]] RankTransfers transfers(const PlanProblem& problem, std::int64_t bytes);

  costmodel::LayerCosts& costs_;
  StageModel& stages_;
  // devices, micro-batches, first rank, split backward
  std::map<std::tuple<int, std::int64_t, int, bool>, RankTable> tables_;
  // devices, micro-batches, ranks, split backward
  std::map<std::tuple<int, std::int64_t, int, bool>, std::unique_ptr<RankFrame>> frames_;
};

}  // namespace orrery::search
