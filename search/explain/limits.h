#pragma once
/// \file
/// What keeps a plan from being faster or from fitting. Shares come from the simulated step,
/// effects from simulating the same plan on a changed machine.
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "costmodel/cost_model.h"
#include "plan/program/program.h"
#include "search/explain/simulated_plan.h"
#include "search/loop/planner.h"

namespace orrery::search {

/// One carrier of communication, 10 % faster.
struct LinkEffect {
  // a kind of link ("nvlink", "ib"); with a measured profile also "intra-host links (measured)",
  // "inter-host links (measured)"
  std::string kind;
  std::int64_t saved_ps = 0;
};

struct Limits {
  int fullest_stage = 0;
  std::int64_t peak_bytes = 0, limit_bytes = 0;
  plan::BufferCategory fullest_category = plan::BufferCategory::kParameter;
  std::int64_t category_bytes = 0;  // of it, at that stage's peak

  // of the critical stage: the step
  std::int64_t compute_ps = 0, communication_ps = 0, bubble_ps = 0;
  // all but the bubble, mean over stages: what equal stages would work
  std::int64_t mean_work_ps = 0;
  sim::TimePart dearest_communication = sim::TimePart::kTensor;
  std::vector<LinkEffect> links;  // largest effect first

  [[nodiscard]] bool fits() const { return peak_bytes <= limit_bytes; }
};

/// What binds time, of three scores, with β the bubble's share of the critical stage and e the
/// elasticities: computation −e_c (1 − β), communication −e_b (1 − β), bubble β. The
/// elasticities count hidden communication that would be the next to be exposed, which shares of
/// time do not.
enum class TimeBound : std::uint8_t { kCompute, kCommunication, kBubble };
/// `compute`, `bandwidth`: −e, per cent of step time saved by a per cent more.
TimeBound bound_of(const SimulatedPlan& simulated, double compute, double bandwidth);

/// Errors: those of the simulator.
base::Result<Limits> limits_of(const costmodel::CostModel& cost, const SimulatedPlan& simulated,
                               std::int64_t limit_bytes);

/// @pre the plan does not fit. Changes of it that do, each simulated: more memory; recomputation;
/// more sharding; more micro-batches. Smallest change first. Errors: those of the simulator.
base::Result<std::vector<Relaxation>> ways_to_fit(const costmodel::CostModel& cost,
                                                  const SimulatedPlan& simulated,
                                                  std::int64_t limit_bytes);

}  // namespace orrery::search
