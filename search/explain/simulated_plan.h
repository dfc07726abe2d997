#pragma once
/// \file
/// The step of one plan taken apart, and two plans set side by side.
///
/// The simulated of a plan is that of its *critical stage*: the one that waits least (the first of
/// equals). Its parts add up to the step time exactly, so the differences between two plans, part
/// by part, add up to the difference of their step times.
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "costmodel/cost_model.h"
#include "plan/program/plan.h"
#include "search/loop/planner.h"
#include "sim/simulate.h"

namespace orrery::search {

/// Picoseconds by sim::TimePart.
using Parts = std::array<std::int64_t, sim::kTimeParts>;

struct SimulatedPlan {
  plan::Plan plan;
  sim::SimReport report;

  [[nodiscard]] std::int64_t step_ps() const { return report.step_time_ps; }
  [[nodiscard]] int critical_stage() const;
  [[nodiscard]] const Parts& parts() const;  // of the critical stage
  [[nodiscard]] int fullest_stage() const;   // largest peak; the first of equals
  [[nodiscard]] std::int64_t peak_bytes() const;
};

/// Balance degrees of Galvatron-BMW (TKDE 2024, arXiv 2307.02031) of the simulated stages, 1 -
/// max_i v_i / Σ_i v_i: of what each works, the bubble left out, and of their peaks. Equal stages
/// have 1 - 1/P (so have stages without any work), one stage 0.
struct Balance {
  double time = 0, memory = 0;
};
Balance balance_of(const sim::SimReport& report);

/// Lowers and simulates. Errors: those of plan::lower and sim::simulate.
base::Result<SimulatedPlan> simulate_plan(const costmodel::CostModel& cost, const plan::Plan& plan);
inline SimulatedPlan simulate_plan(const Candidate& c) { return {c.plan, c.report}; }

/// Of `to` minus `from`; adds up to the difference of the step times.
Parts difference(const SimulatedPlan& from, const SimulatedPlan& to);

/// What `to` does otherwise, a line for each: "tp 1 → 2", "micro-batches 16 → 8",
/// "recomputation none → full (8 layers), none (24 layers)". Empty for plans that divide layers,
/// batch and states alike.
std::vector<std::string> changes(const plan::Plan& from, const plan::Plan& to);

/// Of all stages, in order.
std::vector<plan::LayerRun> runs_of(const plan::Plan& plan);

/// The value of one aspect on all layers: "2", or "1 (26 layers), 2 (6 layers)" in order of
/// appearance.
using Aspect = std::function<std::string(const plan::LayerStrategy&)>;
std::string over_layers(const plan::Plan& plan, const Aspect& aspect);
std::string tp_of(const plan::LayerStrategy& s);
std::string zero_of(const plan::LayerStrategy& s);
std::string recompute_of(const plan::LayerStrategy& s);
std::string states_of(const plan::LayerStrategy& s);
std::string reduction_of(const plan::LayerStrategy& s);

/// Another plan, and where its time goes instead.
struct Comparison {
  SimulatedPlan simulated;
  Parts difference{};  // its parts minus the first plan's
  std::vector<std::string> changes;
};
Comparison compared(const SimulatedPlan& first, SimulatedPlan other);

}  // namespace orrery::search
