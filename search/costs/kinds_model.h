#pragma once
/// \file
/// Costs of models with blocks of several kinds, for kinds_loops.h: one problem (pipeline degree,
/// micro-batches, schedule) at a time.
///
/// A *group* is a run of kinds that differ in their entry alone. Options of a group are the
/// strategies of its tree (space/decision_tree.h) that no other of the same layout beats in time
/// and memory, in every stage.
#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/closed_form/closed_form.h"
#include "costmodel/closed_form/layer_costs.h"
#include "search/programs/layer_program.h"
#include "search/space/decision_tree.h"
#include "search/space/space.h"

namespace orrery::search {

/// Kinds [first, end) that differ in their entry alone, and their layers.
struct KindGroup {
  int first_kind = 0, end_kind = 0;
  std::int64_t first_layer = 0, end_layer = 0;
};
std::vector<KindGroup> kind_groups(const model::ModelSpec& model);

/// Everything but strategies and cuts.
struct KindsProblem {
  int stages = 1, devices = 1;  // of a stage
  std::int64_t micro_batches = 1;
  plan::Schedule schedule = plan::Schedule::k1F1B;
};
std::string to_string(const KindsProblem& problem);

/// One strategy of a group.
struct KindOption {
  plan::LayerStrategy strategy;
  std::vector<std::vector<const costmodel::LayerCost*>> costs;  // [place][kind - first_kind]
  // of all its layers, in the cheapest place
  std::int64_t least_steady_ps = 0, least_total_ps = 0;
  // steady time of its costliest layer there
  std::int64_t widest_ps = 0;
  // states and one stash of all its layers
  std::int64_t bytes = 0;
};

/// Strategies for embedding and head, and one option for every group.
struct KindsChoice {
  std::int64_t bound_ps = 0;
  std::size_t vocabulary = 0;
  std::vector<std::size_t> options;
};

/// Prefix sums over the layers of a choice.
struct KindsSums {
  struct Times {
    // as costmodel::LayerCost; update without zeroing
    std::int64_t forward_ps = 0, backward_ps = 0, backward_sync_ps = 0, zero_ps = 0, update_ps = 0;
  };
  // [place][layers before]; changes of layout before a layer are its own
  std::vector<std::vector<Times>> times;
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
  KindsModel(const costmodel::CostModel& cost, const Space& space, std::int64_t global_batch);

  /// Turns to a problem. False: some kind of block, or the vocabulary, has no strategy.
  bool turn_to(const KindsProblem& problem);
  [[nodiscard]] const KindsProblem& problem() const { return problem_; }
  [[nodiscard]] const std::vector<std::vector<KindOption>>& options() const {
    return options_;
  }  // [group]
  [[nodiscard]] const std::vector<plan::LayerStrategy>& vocabularies() const {
    return vocabularies_;
  }

  /// Embedding and head.
  struct Ends {
    std::int64_t steady_ps = 0, once_ps = 0;
    std::int64_t bytes = 0;  // states
  };
  Ends ends(const plan::LayerStrategy& vocabulary);
  /// Lower bound of a problem whose layers take these sums (kinds_loops.h).
  [[nodiscard]] std::int64_t bound(std::int64_t steady_ps, std::int64_t total_ps,
                                   std::int64_t widest_ps, const Ends& ends) const;

  KindsSums sums_of(const KindsChoice& choice);
  /// A stage with layers [from, to).
  KindsStage stage(const KindsChoice& choice, const KindsSums& sums, int stage, std::int64_t from,
                   std::int64_t to);
  /// What it holds at least; grows with `to`.
  std::int64_t least_bytes(const KindsChoice& choice, const KindsSums& sums, int stage,
                           std::int64_t from, std::int64_t to);
  /// What it holds.
  std::int64_t peak_bytes(const KindsChoice& choice, int stage, std::int64_t from, std::int64_t to);

  /// `ends`: of every stage, layers so far.
  [[nodiscard]] plan::Plan plan_of(const KindsChoice& choice,
                                   const std::vector<std::int64_t>& ends) const;
  base::Result<costmodel::PlanCost> price(const plan::Plan& plan) {
    return costmodel::plan_cost(costs_, plan);
  }
  /// Little memory: of every group and the vocabulary the option that keeps least.
  KindsChoice lightest();

 private:
  [[nodiscard]] TreeContext tree_context() const;
  [[nodiscard]] plan::LayerContext context(int stages) const;
  [[nodiscard]] int first_rank(int stage) const { return stage * problem_.devices; }
  KindOption option_of(const KindGroup& group, const plan::LayerStrategy& strategy);
  const costmodel::LayerCost& embedding(const plan::LayerStrategy& v);
  const costmodel::LayerCost& head(const plan::LayerStrategy& v);
  [[nodiscard]] std::int64_t zero_ps(model::DType dtype, std::int64_t elements) const;
  [[nodiscard]] std::size_t group_of(std::int64_t layer) const;
  [[nodiscard]] const KindOption& option_at(const KindsChoice& choice, std::int64_t layer) const;
  [[nodiscard]] const plan::LayerStrategy& strategy_before(const KindsChoice& choice,
                                                           std::int64_t layer) const;
  const costmodel::LayerCost* change_of(const KindsChoice& choice, std::int64_t layer, int rank);
  [[nodiscard]] std::int64_t stream_elements(const KindsChoice& choice, std::int64_t layer) const;
  [[nodiscard]] std::int64_t sent_bytes(const KindsChoice& choice, std::int64_t layer) const;
  [[nodiscard]] plan::Stage stage_of(const KindsChoice& choice, std::int64_t from,
                                     std::int64_t to) const;
  [[nodiscard]] plan::Plan frame(const KindsChoice& choice) const;

  const costmodel::CostModel& cost_;
  const model::ModelSpec& model_;
  const Space& space_;
  std::int64_t global_batch_;
  costmodel::LayerCosts costs_;
  std::vector<model::ModelSpec> kinds_;
  std::vector<KindGroup> groups_;
  std::vector<int> kind_;  // [layer]
  KindsProblem problem_;
  std::vector<int> places_;            // first ranks of stages that lie differently
  std::vector<std::size_t> place_of_;  // [stage] into places_
  std::vector<std::vector<KindOption>> options_;
  std::vector<plan::LayerStrategy> vocabularies_;
};

}  // namespace orrery::search
