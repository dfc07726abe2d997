#pragma once
/// \file
/// From costs of layers to the integers of the rank program: plans of interleaved 1F1B and ZB-H1.
///
/// The space, exact within: at least two pipeline ranks; the layers of a rank share one strategy, those of different ranks one layout (degrees,
/// sequence parallelism), so that sharding and recomputation may change from rank to rank; a rank has up to 8 layers more or fewer than ⌊L / p⌋. With
/// v <= 16 virtual stages its n layers are spread evenly, the longer stages last: n / v or one more each. So 126 layers run on 16 ranks with any v <= 7. ZB-H1 with at
/// least as many micro-batches as ranks; interleaved with multiples of them (plan/schedule.h).
///
/// Options of a layout that another beats in every time and every byte are left out. The rank program runs on choices that fit by a lower bound
/// of their bytes; what its answer needs is asked of costmodel::stage_peak_bytes, and where that does not fit, so many layers are struck out with
/// that option and it runs again: a layer more adds to what is alive everywhere, so the peak never falls.
///
/// Bound of a layout, with least F, B, W over ranks and options, N = F + B + W, K = ⌈L / p⌉, E the times of embedding and head:
///
///     C >= max(K N, ⌈(L N + E) / p⌉)
///     interleaved  m C + N max(p - 1, ⌈(L - C/N - 1 - (p-1)(v-1)) / v⌉) + transfers + (K + p - 1) sync + v update
///     ZB-H1        (m - 1) C + L (F + B - W) + transfers + K (W' + min(F, B, W))
///
/// since all first stages but the last rank's are filled with what is not on that rank, rank 0 has at least v layers, and some rank has K.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "costmodel/layer_costs.h"
#include "search/rank_program.h"
#include "search/stage_model.h"

namespace orrery::search {

class RankModel {
 public:
  /// @pre all outlive this object.
  RankModel(costmodel::LayerCosts& costs, const Space& space, StageModel& stages, std::int64_t memory_bytes);
  ~RankModel();

  /// Virtual stages of the problem's space; empty: none.
  [[nodiscard]] std::vector<int> virtual_stages(const PlanProblem& problem) const;
  /// Lower bound over layouts and virtual stages, memory left out. @pre StageModel::layers_of(...) has leaves.
  std::int64_t quick_bound(const PlanProblem& problem);
  /// The same whatever the vocabulary, by the layers alone.
  std::int64_t layers_bound(const PlanProblem& problem);

  struct Answer {
    std::int64_t cost_ps = 0;  // plan_cost of the plan
    plan::Plan plan;
  };
  /// The cheapest plan below the cutoff. Exact unless effort is exhausted.
  std::optional<Answer> solve(const PlanProblem& problem, std::int64_t cutoff_ps, Effort& effort);
  /// The plan of the least peak, ranks about equal in layers. @pre virtual_stages(problem) is not empty.
  plan::Plan lightest(const PlanProblem& problem);

 private:
  struct Option {
    std::int32_t leaf = 0;
    const costmodel::LayerCost* cost = nullptr;
  };
  struct Layout {
    plan::LayerStrategy strategy;  // one of them
    std::vector<Option> options;
  };
  using Table = std::vector<Layout>;
  struct Capacity;
  using CapacityKey = std::tuple<int, std::size_t, int, std::int32_t>;  // virtual stages, layout, rank, option
  struct Floor;
  struct Frame;
  struct Ends;
  struct Way;
  class Check;
  using Key = std::tuple<int, std::int64_t, int, bool>;

  [[nodiscard]] plan::LayerContext context(const PlanProblem& problem) const;
  const Table& table(const PlanProblem& problem, int rank);
  Frame& frame(const PlanProblem& problem);
  Ends ends(const PlanProblem& problem, const plan::LayerStrategy& layout);
  std::vector<Way> ways(const PlanProblem& problem);
  std::int64_t bound(const PlanProblem& problem, const Floor& floor, const Ends& ends, int v) const;
  RankProblem ranks(const PlanProblem& problem, const Way& way, std::int64_t cutoff_ps);
  std::optional<Answer> cheapest(const PlanProblem& problem, const std::vector<Way>& all, std::int64_t cutoff_ps, Effort& effort);
  RankChoice choice(const PlanProblem& problem, const Frame& frame, const Way& way, int rank, const Option& option, int layers) const;
  struct Held {
    std::vector<std::int64_t> behind;     // [k] sum over virtual stages k, k + 1, ...
    std::int64_t first = 0, last = 0;     // of the rank's first and last stage
    bool all = false;                     // no forward comes after the first backward
  };
  static Held held_by(const PlanProblem& problem, int v, int rank);
  static std::int64_t least_bytes(const PlanProblem& problem, const Way& way, int rank, const Held& held, const costmodel::LayerCost& cost, int layers);
  plan::Plan blank(const PlanProblem& problem, int v, const plan::LayerStrategy& strategy) const;

  costmodel::LayerCosts& costs_;
  const costmodel::CostModel& cost_;
  const Space& space_;
  StageModel& stages_;
  std::int64_t memory_bytes_;
  std::map<Key, Table> tables_;
  std::map<Key, std::unique_ptr<Frame>> frames_;
};

}  // namespace orrery::search
