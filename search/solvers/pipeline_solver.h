#pragma once
/// \file
/// 1F1B and GPipe, blocks of one kind: stage_model.h states the problem in integers, the pipeline
/// program (programs/pipeline_program.h) solves it.
#include "search/solvers/solver.h"

namespace orrery::search {

class PipelineSolver final : public Solver {
 public:
  /// @pre `stages` outlives this object.
  explicit PipelineSolver(StageModel& stages) : stages_(stages) {}

  bool covers(const PlanProblem& family) override { return stages_.has_strategies(family); }
  Bound bound(const PlanProblem& problem, std::int64_t cutoff_ps) override;
  Answer solve(const PlanProblem& problem, std::int64_t cutoff_ps, Depth depth,
               Effort& effort) override;
  plan::Plan minimum_memory(const PlanProblem& problem) override;
  std::int64_t needed_bytes(const PlanProblem& problem) override;
  std::string shortage(const PlanProblem& problem) override;
  std::optional<PipelineMultipliers> multipliers(const PlanProblem& problem) override;

 private:
  [[nodiscard]] std::int64_t needed_by(const PlanProblem& problem, const PipelineProblem& pipeline,
                                       std::size_t stage) const;

  StageModel& stages_;
};

}  // namespace orrery::search
