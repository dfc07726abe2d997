#include "search/solvers/pipeline_solver.h"

#include <algorithm>

#include "search/programs/minimum_memory.h"
#include "search/status.h"

namespace orrery::search {

Solver::Bound PipelineSolver::bound(const PlanProblem& problem, std::int64_t /*cutoff_ps*/) {
  return {pipeline_bound(stages_.pipeline(problem))};
}

Solver::Answer PipelineSolver::solve(const PlanProblem& problem, std::int64_t cutoff_ps,
                                     Depth depth, Effort& effort) {
  const auto program = depth == Depth::kExact ? solve_pipeline : quick_pipeline;
  const auto answer = program(stages_.pipeline(problem), cutoff_ps, effort);
  if (!answer) return {};
  return {.plan = stages_.plan_of(problem, *answer), .form_ps = answer->cost_ps};
}

plan::Plan PipelineSolver::minimum_memory(const PlanProblem& problem) {
  return stages_.plan_of(problem, search::minimum_memory(stages_.pipeline(problem)));
}

/// By the memory form.
std::int64_t PipelineSolver::needed_by(const PlanProblem& problem, const PipelineProblem& pipeline,
                                       std::size_t stage) const {
  LayerProblem p = pipeline.stages[stage].layers;
  p.layers = pipeline.stages[stage].fewest;
  return std::min(kForbidden,
                  stages_.memory_bytes(problem, as_int(stage)) - p.budget_bytes + least_memory(p));
}

std::int64_t PipelineSolver::needed_bytes(const PlanProblem& problem) {
  const PipelineProblem& pipeline = stages_.pipeline(problem);
  std::int64_t needed = 0;
  for (std::size_t i = 0; i < pipeline.stages.size(); ++i)
    needed = std::max(needed, needed_by(problem, pipeline, i));
  return needed;
}

std::string PipelineSolver::shortage(const PlanProblem& problem) {
  const PipelineProblem& pipeline = stages_.pipeline(problem);
  for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
    const std::int64_t needed = needed_by(problem, pipeline, i),
                       limit = stages_.memory_bytes(problem, as_int(i));
    if (needed > limit)
      return fmt::format("stage {} needs {}, limit {}", i, gib(needed), gib(limit));
  }
  return fmt::format("no choice of layers fits {}", gib(stages_.memory().most()));
}

std::optional<PipelineMultipliers> PipelineSolver::multipliers(const PlanProblem& problem) {
  constexpr std::uint64_t kOptionsOfTick = 4;
  const PipelineProblem& pipeline = stages_.pipeline(problem);
  PipelineMultipliers found = pipeline_multipliers(pipeline);
  for (const PipelineStage& stage : pipeline.stages)
    found.ticks += stage.layers.options.size() / kOptionsOfTick;
  return found;
}

}  // namespace orrery::search
