#pragma once
/// \file
/// What the best-first loop (loop/best_first.h) asks about a problem, whoever solves it: sharper
/// bounds, the cheapest plan, and what to say where nothing fits. Bounds by sums of the cheapest
/// layers, the same for all, are stage_model.h's.
///
///   pipeline_solver.h  blocks of one kind; 1F1B, GPipe: programs/pipeline_program.h
///   rank_solver.h      blocks of one kind; interleaved 1F1B, ZB-H1: programs/rank_program.h
///   kinds_solver.h     blocks of several kinds; 1F1B, GPipe and, but for encoder-decoders,
///                      interleaved 1F1B: choices in the order of bounds, cuts by labels
#include <cstdint>
#include <optional>
#include <string>

#include "search/costs/stage_model.h"
#include "search/programs/pipeline_multipliers.h"

namespace orrery::search {

enum class Depth : std::uint8_t { kExact, kQuick };

class Solver {
 public:
  Solver() = default;
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;
  virtual ~Solver() = default;

  /// False: no plan is of this family (vocabulary left open), whatever its layers.
  virtual bool covers(const PlanProblem& family) = 0;
  /// Whether exact answers take long until some plan is known.
  [[nodiscard]] virtual bool needs_incumbent(const PlanProblem& /*problem*/) const { return false; }

  /// Whether the certificate speaks of such plans; of others a good one is looked for.
  [[nodiscard]] virtual bool proves(const PlanProblem& /*problem*/) const { return true; }

  /// No plan that fits costs less than `ps`, of those below `below_ps`.
  struct Bound {
    std::int64_t ps = 0, below_ps = kForbidden;
  };
  /// Whatever the vocabulary. kForbidden: nothing fits.
  virtual Bound family_bound(const PlanProblem& /*family*/, std::int64_t /*cutoff_ps*/) {
    return {};
  }
  virtual Bound bound(const PlanProblem& /*problem*/, std::int64_t /*cutoff_ps*/) { return {}; }

  struct Answer {
    std::optional<plan::Plan> plan;  // below the cutoff by the solver's form of the cost
    std::int64_t form_ps = 0;        // that form: plan_cost may charge more, never less
    std::int64_t left_ps = 0;        // lower bound of what the effort did not reach
  };
  /// The cheapest plan that fits, exact unless `effort` says otherwise; quick: a good one.
  virtual Answer solve(const PlanProblem& problem, std::int64_t cutoff_ps, Depth depth,
                       Effort& effort) = 0;
  /// A plan of little memory, whether it fits or not.
  virtual plan::Plan minimum_memory(const PlanProblem& problem) = 0;
  /// Lower bound of what the fullest device holds; 0: none is known.
  virtual std::int64_t needed_bytes(const PlanProblem& /*problem*/) { return 0; }
  /// Of a problem of which nothing fits.
  virtual std::string shortage(const PlanProblem& problem) = 0;
  /// None: the problem's bound is not stated as multipliers (certificate.h).
  virtual std::optional<PipelineMultipliers> multipliers(const PlanProblem& /*problem*/) {
    return std::nullopt;
  }
};

}  // namespace orrery::search
