#pragma once
/// \file
/// From costs of layers to the integers of the pipeline program.
///
/// From costmodel/closed_form/closed_form.h, with cycle = max (F_i + B_i)
///
///   step = Z + Σ (F_i + f_i) + (m-1) cycle + Σ (B'_i + b_i) + U
///
/// and
///
///   n = F + B (B holds the reduction where gradients are reduced per micro-batch), y = B' - B;
///   R = forward + backward of a change of layout; entry and exit to the vocabulary's layout
///       likewise;
///   S = f + b, transfer of the activation and of its gradient; without overlap they hold the
///       stage: part of n;
///   Z + U = that of the first stage, which starts first and ends last, in its y. Where another
///       stage's zeroing or update reaches beyond, and under GPipe (cycle = max F + max B), this is
///       a lower bound: best_first.h takes the exact figure from plan_cost.
///
/// Bounds before any program, of blocks of all kinds, by the cheapest strategy of each layer in any
/// stage: Σ F + B' of all layers, most = max(⌈Σ N / p⌉, the ⌈L/p⌉ cheapest N), as
/// some stage takes at least,
///
///     1F1B, GPipe  Σ (F + B') + (m - 1) most
///     interleaved  m most, and what all layers draw where energy is minimised
///     ZB-H1        max((m - 1) most, (m - 1 - p) most + 2 Σ (F + B)),
///                  N + F + B - W >= 2 (F + B),
///                  F + B at least as LayerCosts::block_floor() says
///
/// and with the vocabulary's embedding and head in both terms.
///
/// Memory goes in by the lower bound of layer_memory.h; costmodel::stage_peak_bytes has the last
/// word on every answer.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/numbers.h"
#include "costmodel/closed_form/closed_form.h"
#include "costmodel/closed_form/layer_costs.h"
#include "costmodel/cost_model.h"
#include "costmodel/memory_limit.h"
#include "search/costs/layer_memory.h"
#include "search/programs/pipeline_program.h"
#include "search/space/decision_tree.h"

namespace orrery::search {

/// One problem of the best-first loop.
struct PlanProblem {
  int stages = 1;   // pipeline ranks
  int devices = 1;  // of a stage
  int idle = 0;     // devices of the cluster that no stage uses
  std::int64_t micro_batches = 1;
  plan::Schedule schedule = plan::Schedule::k1F1B;
  plan::LayerStrategy vocabulary;

  /// Micro-batches whose full stash a stage holds.
  [[nodiscard]] std::int64_t in_flight(int stage) const {
    return costmodel::in_flight(schedule, stage, stages, micro_batches);
  }
};
/// "pp=4 m=16 1f1b vocabulary tp2 dp4 zero3"; with "idle=2" behind m where devices are idle.
std::string to_string(const PlanProblem& problem);
/// The same without the vocabulary: "pp=4 m=16 1f1b".
std::string family_name(const PlanProblem& problem);

inline constexpr int kMostVirtualStages = 16;  // a sixteenth of the bubble is left

class StageModel {
 public:
  /// @pre `costs` and `space` outlive this object. `memory`: what the Program's buffers may take on
  /// a device.
  StageModel(costmodel::LayerCosts& costs, const Space& space, std::int64_t global_batch,
             costmodel::MemoryLimit memory);
  ~StageModel();

  [[nodiscard]] costmodel::LayerCosts& costs() const { return costs_; }
  [[nodiscard]] const costmodel::MemoryLimit& memory() const { return memory_; }
  /// On pipeline rank `rank`.
  [[nodiscard]] std::int64_t memory_bytes(const PlanProblem& problem, int rank) const {
    return memory_.of(cost_, rank * problem.devices, problem.devices);
  }
  /// Strategies of layers and of the vocabulary for stages of `devices`, with what was cut.
  const StrategyTree& layers_of(int devices, std::int64_t micro_batches, int kind = 0);
  const StrategyTree& vocabulary_of(int devices, std::int64_t micro_batches);

  [[nodiscard]] std::int64_t layers_of_kind(int kind) const {
    return kinds_[as_index(kind)].layers;
  }
  /// Whether blocks of every kind have some.
  bool has_strategies(const PlanProblem& problem);

  /// The header's bounds: whatever the vocabulary, and with it (not of ZB-H1). @pre has_strategies.
  /// The first by computation alone, where `computes`: no group is priced then.
  std::int64_t layers_bound(const PlanProblem& problem, bool computes = false);
  std::int64_t quick_bound(const PlanProblem& problem);
  /// Whether prices are to be asked for no more; none: never. `gives_up` is asked before each.
  void set_limit(std::function<bool()> gives_up) { gives_up_ = std::move(gives_up); }
  /// Prices the layers of the problem's family, which may take long where groups lie differently on
  /// the hosts of each stage. False: not all of them within the limit; bounds are by computation
  /// alone then, and whoever builds on all prices is not to be asked.
  bool price_layers(const PlanProblem& problem);
  /// The problem in integers. Its check and changes stay valid until the next call. @pre
  /// layers_of(...) has leaves.
  const PipelineProblem& pipeline(const PlanProblem& problem);
  /// The plan that an answer of that program stands for.
  plan::Plan plan_of(const PlanProblem& problem, const PipelineAnswer& answer);

  /// Numbers of virtual stages that the schedule can have; none: there is no such plan.
  [[nodiscard]] std::vector<int> virtual_stages(const PlanProblem& problem) const;
  /// First ranks of stages that lie differently.
  const std::vector<int>& places(const PlanProblem& problem);

  /// All of a plan but its stages.
  [[nodiscard]] plan::Plan frame(const PlanProblem& problem) const;
  [[nodiscard]] plan::LayerContext context(std::int64_t micro_batches, int stages) const;
  /// Of the residual stream on a rank, behind a block.
  [[nodiscard]] std::int64_t stream_elements(const plan::LayerStrategy& layout,
                                             std::int64_t micro_batches, int kind = 0) const;
  [[nodiscard]] std::int64_t stream_bytes(const plan::LayerStrategy& layout,
                                          std::int64_t micro_batches, int kind = 0) const;
  /// On the last pipeline rank.
  [[nodiscard]] std::int64_t zero_ps(const PlanProblem& problem, model::DType dtype,
                                     std::int64_t elements) const;
  /// The loss is one number, zeroed once.
  [[nodiscard]] std::int64_t zero_loss_ps(const PlanProblem& problem) const {
    return zero_ps(problem, model::DType::kFloat32, 1);
  }

 private:
  struct Block {
    std::int32_t leaf = 0;  // of the tree
    const costmodel::LayerCost* cost = nullptr;
    LayerMemory memory;
    int layout = 0;
  };
  /// Blocks of a stage that no other of the same layout beats in everything, its layouts and the
  /// changes between them.
  struct Table {
    std::vector<Block> blocks;
    std::vector<plan::LayerStrategy> layouts;  // one strategy of each
    std::vector<std::int64_t> stream_bytes;    // [layout]
    std::vector<std::int64_t> change_ps;       // [from * layouts + to], -1: not asked for yet
  };
  /// Embedding or head.
  struct Vocabulary {
    const costmodel::LayerCost* cost = nullptr;
    LayerMemory memory;
    std::int64_t stream_bytes = 0;
  };
  class View;
  using Key = std::tuple<int, std::int64_t, int>;  // devices, micro-batches, first rank

  [[nodiscard]] bool gives_up() const { return gives_up_ && gives_up_(); }
  [[nodiscard]] TreeContext tree_context(int devices, std::int64_t micro_batches) const;
  [[nodiscard]] StrategyTree grown(int devices, std::int64_t micro_batches, int kind) const;
  /// As layers_of(), kept until other devices or micro-batches are looked at: most stages that
  /// leave devices idle are cut by what their layers compute, and many trees fill the memory.
  const StrategyTree& glance_at(int devices, std::int64_t micro_batches, int kind);
  Table& table(int devices, std::int64_t micro_batches, int first_rank);
  std::int64_t change_ps(Table& table, std::int64_t micro_batches, int first_rank, int devices,
                         int from, int to);
  /// Of the cheapest layer of a kind: steady (with the weight gradients of ZB-H1), with
  /// synchronisation, at least forward and backward alone.
  struct Least {
    std::int64_t steady_ps = kForbidden, total_ps = kForbidden, passes_ps = kForbidden,
                 energy_ps = kForbidden;
    void take(const Least& other);
  };
  /// What a layer computes under a strategy, and that leaf of layers_of.
  using Computing = std::pair<std::int64_t, std::size_t>;
  /// Least first.
  const std::vector<Computing>& by_computation(const PlanProblem& problem, int kind = 0);
  // devices, micro-batches, kind, first rank, split backward
  using LayerKey = std::tuple<int, std::int64_t, int, int, bool>;
  static LayerKey layer_key(const PlanProblem& problem, int kind, int first_rank);
  [[nodiscard]] plan::LayerContext layer_context(const PlanProblem& problem, int kind) const;
  Least cheapest_layer(const PlanProblem& problem, int kind, int first_rank);
  Least least_computing(const PlanProblem& problem, int kind);
  static constexpr int kNowhere = -1;  // first rank: by computation alone
  /// Sums over the layers, and `most`, of the header.
  struct Floors {
    std::int64_t total_ps = 0, steady_ps = 0, passes_ps = 0, most_ps = 0, energy_ps = 0;
  };
  Floors floors(const PlanProblem& problem, bool computes = false);
  Vocabulary vocabulary(const PlanProblem& problem, bool head);
  void fill_stage(const PlanProblem& problem, int index, const Table& table, PipelineStage& stage);
  void add_ends(const PlanProblem& problem, int index, const Table& table, PipelineStage& stage);

  costmodel::LayerCosts& costs_;
  const costmodel::CostModel& cost_;
  const Space& space_;
  std::int64_t global_batch_;
  costmodel::MemoryLimit memory_;
  std::vector<std::string> device_order_;  // of a mixed machine
  std::string model_fingerprint_;
  struct Kind {
    model::ModelSpec block;
    std::int64_t layers = 0;
  };
  std::vector<Kind> kinds_;
  // devices, micro-batches, kind; no kind: the vocabulary
  std::map<std::tuple<int, std::int64_t, int>, StrategyTree> trees_, glanced_;
  std::map<std::pair<int, std::int64_t>, bool>
      some_;  // has_strategies, of (devices, micro-batches)
  std::map<Key, std::unique_ptr<Table>> tables_;
  std::function<bool()> gives_up_;
  std::map<std::tuple<int, int, std::int64_t, bool>, bool> priced_;  // price_layers()
  std::map<LayerKey, Least> least_;
  std::map<LayerKey, std::vector<Computing>> computing_;
  std::map<std::pair<int, int>, std::vector<int>> places_;  // of (stages, devices)
  PipelineProblem problem_;
  std::unique_ptr<View> view_;
};

}  // namespace orrery::search
