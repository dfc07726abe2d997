#pragma once
/// \file
/// Models with blocks of several kinds (T5, Swin, dense blocks before mixtures of experts).
///
/// Space. Kinds that differ in their entry alone (a decoder's first block, a stage's first block of
/// Swin) are one *group*. The blocks of a group share one strategy in the whole plan; groups,
/// embedding and head choose freely. Under 1F1B and GPipe so do the cuts between pipeline stages;
/// interleaved plans have stages of equal length (plan::stage_layers) and one layout, sharding and
/// recomputation may differ from group to group.
///
/// Cost, as costmodel/closed_form/closed_form.h states it. For one choice of strategies stages are
/// ranges [j, k) of layers, so their F, B, B', Z, U are differences of prefix sums, plus embedding,
/// head and the transfers f, b beside them. With p stages and m micro-batches
///
///     minimise over cuts:  s_p + v_p + (m - 1) max_i N_i,
///                          s_i = max(s_{i-1}, Z_i) + f_i + F_i,
///                          v_i = max(v_{i-1}, U_i) + b_i + B'_i
///
/// (s: the first micro-batch has come through; v: the last one's way back, and the latest update
/// behind it). N = F + B, and f + b where nothing overlaps.
///
/// Recurrence: P_i[k] = nondominated { (max(τ, N), max(s, Z) + f + F, max(v, U) + b + B') of stage
/// i with layers [j, k), if it fits : (τ, s, v) in P_{i-1}[j] }; answer the least s + v + (m - 1)
/// τ in P_p[L]. State = label; order: stages forward; O(p L²) ranges, whose memory is first
/// bounded from below by prefix sums (persistent + stashes in flight) and then asked of
/// costmodel::stage_peak_bytes, which is exact; a range with more room than others needed beside
/// that bound is asked for only where it is part of the answer. A label dies when with the least
/// times of the layers to come it reaches the best plan. Optimal over the cuts. An interleaved
/// choice is priced with each number of virtual stages.
///
/// Choices of strategies are taken in the order of their lower bound, memory and cuts left out:
///
///     Σ_l (F_l + B'_l) + ends + (m - 1) C,  C = max( (Σ_l N_l + ends) / p, max_l N_l );
///     interleaved  (m - 1) C + max(C, (Σ_l (F_l + B'_l + U_l) + ends) / p),
///
/// since no rank's end and update lie behind the mean of all,
///
/// and those whose states and stashes exceed the memory of all stages together (interleaved: the
/// last rank, which holds fewest, has forwarded half of p micro-batches at least) are left out:
/// best first over groups, made when needed, so the first choice whose bound reaches the best plan
/// ends the problem (tests/oracle/search/kinds_test.cc).
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "search/costs/kinds_model.h"
#include "search/proof/multiplier_bound.h"
#include "search/solvers/solver.h"

namespace orrery::search {

class KindsSolver final : public Solver {
 public:
  /// @pre all outlive this object.
  KindsSolver(costmodel::LayerCosts& costs, StageModel& stages, const Space& space);

  bool covers(const PlanProblem& family) override;
  [[nodiscard]] bool needs_incumbent(const PlanProblem& problem) const override {
    return !proves(problem);
  }
  /// Bounds of interleaved choices are too weak to prove much.
  [[nodiscard]] bool proves(const PlanProblem& problem) const override {
    return problem.schedule != plan::Schedule::kInterleaved;
  }
  /// Effort counts ranges and partial choices. Quick: the first plan of the first choices.
  Answer solve(const PlanProblem& problem, std::int64_t cutoff_ps, Depth depth,
               Effort& effort) override;
  plan::Plan minimum_memory(const PlanProblem& problem) override;
  std::int64_t needed_bytes(const PlanProblem& problem) override;
  std::string shortage(const PlanProblem& problem) override;
  /// Equal weights; prices from the options' trade of time for bytes. What they prove is what the
  /// checker says (proof/multiplier_bound.h).
  std::optional<PipelineMultipliers> multipliers(const PlanProblem& problem) override;

 private:
  /// Cuts of a choice, and what they cost by the form.
  struct Cuts {
    std::int64_t form_ps = 0;
    std::vector<std::int64_t> ends;  // of every stage, layers so far
  };
  struct Labels;

  std::optional<Cuts> best_cuts(const KindsChoice& choice, std::int64_t cutoff_ps, Effort& effort);
  std::optional<Cuts> cut(const KindsChoice& choice, std::int64_t cutoff_ps, Effort& effort,
                          bool asks_all);
  bool fits(const KindsChoice& choice, int stage, std::int64_t from, std::int64_t to,
            std::int64_t least, Labels& labels);
  void extend(const KindsChoice& choice, const KindsSums& sums, int stage, std::int64_t from,
              std::int64_t cutoff_ps, Labels& labels, Effort& effort);
  [[nodiscard]] bool may_fit(const KindsSums& sums, const std::vector<std::int64_t>& ends) const;
  std::optional<Cuts> best_spread(const KindsChoice& choice, std::int64_t cutoff_ps,
                                  Effort& effort);
  [[nodiscard]] std::vector<std::int64_t> even_ends(int stages, int virtual_stages) const;
  /// Of pipeline rank r of the problem at hand; of all together.
  [[nodiscard]] std::int64_t memory_bytes(int r) const {
    return stages_.memory_bytes(model_.problem(), r);
  }
  [[nodiscard]] std::int64_t memory_of_all() const;
  [[nodiscard]] std::int64_t layers() const { return costs_.cost().model().layers; }

  costmodel::LayerCosts& costs_;
  StageModel& stages_;
  const Space& space_;
  KindsModel model_;
  // stages, devices, micro-batches, schedule
  std::map<std::tuple<int, int, std::int64_t, plan::Schedule>, FamilyBound> bounds_;
};

}  // namespace orrery::search
