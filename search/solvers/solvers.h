#pragma once
#include "search/solvers/kinds_solver.h"
#include "search/solvers/pipeline_solver.h"
#include "search/solvers/rank_solver.h"

namespace orrery::search {

/// The solvers of one search.
class Solvers {
 public:
  /// @pre `costs` and `space` outlive this object. `memory_bytes`: what the Program's buffers may
  /// take on a device.
  Solvers(costmodel::LayerCosts& costs, const Space& space, std::int64_t global_batch,
          std::int64_t memory_bytes)
      : stages_(costs, space, global_batch, memory_bytes),
        pipelines_(stages_, memory_bytes),
        ranks_(costs, space, stages_, memory_bytes) {
    if (costs.cost().model().kinds() > 1) kinds_.emplace(costs, stages_, space, memory_bytes);
  }

  StageModel& stages() { return stages_; }
  /// The one that the problem belongs to.
  Solver& of(const PlanProblem& problem) {
    const bool ranks = problem.schedule == plan::Schedule::kInterleaved ||
                       problem.schedule == plan::Schedule::kZeroBubbleH1;
    if (kinds_) return *kinds_;
    if (ranks) return ranks_;
    return pipelines_;
  }

 private:
  StageModel stages_;
  PipelineSolver pipelines_;
  RankSolver ranks_;
  std::optional<KindsSolver> kinds_;
};

}  // namespace orrery::search
