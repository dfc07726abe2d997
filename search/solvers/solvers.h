#pragma once
#include "search/solvers/kinds_solver.h"
#include "search/solvers/pipeline_solver.h"
#include "search/solvers/rank_solver.h"

namespace orrery::search {

/// The solvers of one search.
class Solvers {
 public:
  /// @pre both outlive this object.
  Solvers(StageModel& stages, const Space& space)
      : stages_(stages), pipelines_(stages), ranks_(stages.costs(), space, stages) {
    if (stages.costs().cost().model().kinds() > 1) kinds_.emplace(stages.costs(), stages, space);
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
  StageModel& stages_;
  PipelineSolver pipelines_;
  RankSolver ranks_;
  std::optional<KindsSolver> kinds_;
};

}  // namespace orrery::search
