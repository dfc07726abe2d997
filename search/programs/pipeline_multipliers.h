#pragma once
/// \file
/// The multipliers behind the Lagrangian bound of a pipeline (pipeline_bound.h), rounded to
/// rationals of one denominator D:
///
///   V_i(n)  = constants_i + max over μ in {0} and the stage's prices of
///             n min_s (a n_s + b y_s + μ m_s) - μ capacity_i,
///   mean    min over counts n_i, Σ n_i = layers, of Σ_i V_i(n_i),
///           a = D + (m - 1) w_i D, b = D
///   split   the same with w = 0, plus (m - 1) min over counts of max_i V_i,  a = D, b = 0
///
/// The mean form shares counts between the two terms and takes a mean for the slowest stage, the
/// split form knows that layers are whole. The better of the two is stated. The prices of a stage
/// are the slopes of the hull segments that its relaxation uses for some number of layers, so V_i
/// is the linear relaxation up to rounding; where some number of layers does not even fit
/// fractionally, kRay is one of them: V_i is then beyond any cost. A problem that fits nowhere has
/// a bound of kForbidden.
///
/// Worked example (PipelineMultipliers.WorkedExample): one stage of two layers, budget 6, options
/// (time, bytes) = (1, 5), (4, 1). Fractionally one layer each: price 3/4, bound
/// 2 (1 + 15/4) - 18/4 = 5.
#include <cstdint>
#include <vector>

#include "search/programs/pipeline_program.h"

namespace orrery::search {

struct PipelineMultipliers {
  std::int64_t unit = 1;                          // D
  std::vector<std::int64_t> weights;              // [stage] w_i D, Σ = D; all 0: the split form
  std::vector<std::vector<std::int64_t>> prices;  // [stage] μ D, ascending
  std::int64_t bound_ps = 0;                      // rounded up
  std::uint64_t ticks = 0;                        // what finding them took, as Effort counts
};

/// Price of memory that no stage can pay.
inline constexpr std::int64_t kRay = std::int64_t{1} << 58;

/// O(stages · options · prices of a stage): the number of layers does not matter (convex_cost.h).
PipelineMultipliers pipeline_multipliers(const PipelineProblem& problem);

}  // namespace orrery::search
