#pragma once
/// \file
/// What would make a step faster, each tried for real: twice of everything there is, and how much
/// of what binds would end its binding.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "costmodel/cost_model.h"
#include "search/explain/known_plans.h"
#include "search/explain/limits.h"
#include "search/explain/simulated_plan.h"
#include "search/loop/planner.h"

namespace orrery::search {

/// Twice the memory, bandwidth, speed of computation, global batch or hosts, all else equal. Gains
/// are of sequences a second, parts per million more than the explained plan has now (or the best
/// that fits, if it does not).
struct Improvement {
  std::string what;  // "twice the memory of a device (80 GiB)"
  // with the explained plan as it is; none: it is no plan there
  std::optional<std::int64_t> kept_gain_ppm;
  std::int64_t best_gain_ppm = 0;  // with the fastest plan found there
  plan::Plan best;
};

/// A memory per device, in whole GiB, and the fastest plan found with it.
struct MemoryMark {
  std::int64_t bytes = 0;
  SimulatedPlan best;
};
struct MemoryMarks {
  // the least where the answer of the search recomputes nothing; none: it does not recompute now
  std::optional<MemoryMark> no_recomputation;
  // the least where the optimum by closed form is within 0.1 % of that with unlimited memory; none:
  // there is enough
  std::optional<MemoryMark> enough;
};

/// The least of a few multiples of what binds the step's time that ends its binding, with the plan
/// kept (for the bubble: with as many more micro-batches).
struct Release {
  std::string what;           // "3 times the bandwidth", "a global batch of 256"
  std::int64_t gain_ppm = 0;  // of sequences a second
  TimeBound then = TimeBound::kCompute;
};

/// Per cent of step time for a per cent of a quantity, by central difference over ±10 %: negative
/// where more of it saves time.
double elasticity(std::int64_t less_ps, std::int64_t more_ps, std::int64_t step_ps);

/// What binds the time of a plan on a machine changed by `scale`. Errors: those of the simulator.
base::Result<TimeBound> bound_on(const costmodel::CostModel& cost,
                                 const costmodel::SpeedScale& scale, const plan::Plan& plan);

/// @pre `problem.memory_bytes` > 0. `now` is the plan that gains are counted from, `kept` whether
/// it is the explained one. The fastest of `known` compete on changed machines, and what is found
/// there is one of them. Largest gain first. Errors: those of find_plan.
base::Result<std::vector<Improvement>> improvements_of(const costmodel::CostModel& cost,
                                                       const SimulatedPlan& now, bool kept,
                                                       const PlanRequest& problem,
                                                       KnownPlans& known);
/// By bisection over whole GiB, a search each. @pre as above; some plan fits. Errors: those of
/// find_plan.
base::Result<MemoryMarks> memory_marks(const costmodel::CostModel& cost,
                                       const PlanRequest& problem);
/// Nothing when computation binds, or no multiple up to 32 ends it. Errors: those of the simulator.
base::Result<std::optional<Release>> release_of(const costmodel::CostModel& cost,
                                                const SimulatedPlan& simulated, TimeBound bound);

}  // namespace orrery::search
