#pragma once
/// \file
/// Costs of models with blocks of several kinds, for kinds_solver.h: one problem at a time.
///
/// A *group* is a run of kinds that differ in their entry alone. Options of a group are the
/// strategies of its tree (space/decision_tree.h) that no other of the same layout beats in time
/// and memory, in every stage.
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "costmodel/closed_form/closed_form.h"
#include "costmodel/closed_form/layer_costs.h"
#include "search/costs/pass_times.h"
#include "search/costs/stage_model.h"

namespace orrery::search {

/// Kinds [first, end) that differ in their entry alone, or in which keys their queries see and how
/// these are rotated: one strategy serves all their layers, wherever these stand.
struct KindGroup {
  int first_kind = 0, end_kind = 0;
};
std::vector<KindGroup> kind_groups(const model::ModelSpec& model);

/// One strategy of a group.
struct KindOption {
  plan::LayerStrategy strategy;
  std::vector<std::vector<const costmodel::LayerCost*>> costs;  // [place][kind - first_kind]
  // of all its layers, in the cheapest place
  std::int64_t least_steady_ps = 0, least_total_ps = 0, least_update_ps = 0, least_energy_ps = 0;
  // steady time of its costliest layer there
  std::int64_t widest_ps = 0;
  // of all its layers
  std::int64_t state_bytes = 0, stash_bytes = 0;
};

/// One option for every group.
struct KindsChoice {
  std::int64_t bound_ps = 0;
  std::vector<std::size_t> options;
};

/// Prefix sums over the layers of a choice.
struct KindsSums {
  // [place][layers before]; changes of layout before a layer are its own
  std::vector<std::vector<PassTimes>> times;
  std::vector<std::int64_t> persistent_bytes, stash_bytes;  // [layers before]
  // [layers before] least time of those to come, once through, with synchronisation
  std::vector<std::int64_t> rest_ps;
};

/// A stage in the formula of costmodel/closed_form/closed_form.h.
struct KindsStage {
  std::int64_t steady_ps = 0;    // F + B, and transfers that hold it
  std::int64_t forward_ps = 0;   // f + F
  std::int64_t backward_ps = 0;  // b + B'
  std::int64_t zero_ps = 0, update_ps = 0;
};

class KindsModel {
 public:
  /// All must outlive the object.
  KindsModel(costmodel::LayerCosts& costs, StageModel& stages);

  /// @pre StageModel::has_strategies.
  void turn_to(const PlanProblem& problem);
  [[nodiscard]] const PlanProblem& problem() const { return problem_; }
  /// [group]
  [[nodiscard]] const std::vector<std::vector<KindOption>>& options() const {
    return *family_->options;
  }

  /// Embedding and head.
  struct Ends {
    std::int64_t steady_ps = 0, once_ps = 0, energy_ps = 0;
    std::int64_t bytes = 0;  // states
  };
  Ends ends();
  /// Of all layers at least: Σ N, Σ (F + B'), Σ U, the largest N, and what they draw.
  struct Floors {
    std::int64_t steady_ps = 0, total_ps = 0, update_ps = 0, widest_ps = 0, energy_ps = 0;
  };
  /// Lower bound of plans whose layers take these sums (kinds_solver.h).
  [[nodiscard]] std::int64_t bound(const Floors& layers, const Ends& ends) const;

  KindsSums sums_of(const KindsChoice& choice);
  /// A stage with layers [from, to). @pre not interleaved.
  KindsStage stage(const KindsChoice& choice, const KindsSums& sums, int stage, std::int64_t from,
                   std::int64_t to);
  /// What it holds at least; grows with `to`.
  std::int64_t least_bytes(const KindsSums& sums, int stage, std::int64_t from, std::int64_t to);
  /// What it holds.
  std::int64_t peak_bytes(const KindsChoice& choice, int stage, std::int64_t from, std::int64_t to);

  /// What all of this took so far, as Effort counts.
  [[nodiscard]] std::uint64_t ticks() const { return ticks_; }

  /// `ends`: of every stage, layers so far.
  [[nodiscard]] plan::Plan plan_of(const KindsChoice& choice,
                                   const std::vector<std::int64_t>& ends) const;

 private:
  using Options = std::vector<std::vector<KindOption>>;  // [group]
  /// What problems of as many stages, devices and micro-batches share.
  struct Family {
    std::vector<int> places;            // first ranks of stages that lie differently
    std::vector<std::size_t> place_of;  // [stage] into places
    const Options* options = nullptr;
  };
  [[nodiscard]] plan::LayerContext context() const;
  [[nodiscard]] int first_rank(int stage) const { return stage * problem_.devices; }
  std::vector<KindOption> options_of(const KindGroup& group, const std::vector<int>& places);
  KindOption option_of(const KindGroup& group, const plan::LayerStrategy& strategy,
                       const std::vector<int>& places);
  const costmodel::LayerCost& embedding();
  const costmodel::LayerCost& head();
  [[nodiscard]] std::size_t group_of(std::int64_t layer) const;
  [[nodiscard]] const plan::LayerStrategy& strategy_before(const KindsChoice& choice,
                                                           std::int64_t layer) const;
  const costmodel::LayerCost* change_of(const KindsChoice& choice, std::int64_t layer, int rank);
  [[nodiscard]] std::int64_t stream_elements(const KindsChoice& choice, std::int64_t layer) const;
  [[nodiscard]] std::int64_t sent_bytes(const KindsChoice& choice, std::int64_t layer) const;
  [[nodiscard]] plan::Stage stage_of(const KindsChoice& choice, std::int64_t from,
                                     std::int64_t to) const;

  costmodel::LayerCosts& costs_;
  const costmodel::CostModel& cost_;
  const model::ModelSpec& model_;
  StageModel& stages_;
  std::vector<KindGroup> groups_;
  std::vector<int> kind_;  // [layer]
  PlanProblem problem_;
  std::map<std::tuple<int, int, std::int64_t>, Family> families_;
  // of as many devices and micro-batches, at the same places
  std::map<std::tuple<int, std::int64_t, std::vector<int>>, Options> options_;
  const Family* family_ = nullptr;
  std::uint64_t ticks_ = 0;
};

}  // namespace orrery::search
