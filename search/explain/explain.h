#pragma once
/// \file
/// Why a plan is as fast as it is, what limits it, what else there is, and how far the answer can
/// be trusted. Everything is computed: by taking the simulated step apart (simulated_plan.h), by
/// searching the same problem with each decision undone (decisions.h), and by simulating and
/// searching again on machines that are 10 % or twice (improvements.h) as fast, or hold as much
/// more. Every plan that is found anywhere and fits competes for every answer (known_plans.h): no
/// plan of an explanation beats one that is called the best.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "costmodel/cost_model.h"
#include "costmodel/uncertainty/uncertainty.h"
#include "search/explain/decisions.h"
#include "search/explain/improvements.h"
#include "search/explain/limits.h"
#include "search/explain/simulated_plan.h"
#include "search/loop/planner.h"

namespace orrery::search {

/// What the plan is held against.
struct VersusSpace {
  std::string text;  // "tp=8,pp=1": the best plan with these values
  Space space;
};
struct ExplainRequest {
  plan::Plan plan;
  // the search that the plan competes in; top: candidates of each search
  PlanRequest problem;
  std::optional<VersusSpace> versus_space;
  std::optional<plan::Plan> versus_plan;
  int others = 5;  // runners-up wanted
};

struct Versus {
  std::string text;                           // as asked
  bool of_values = false;                     // values were asked for, not a plan
  std::optional<Comparison> comparison = {};  // none: no plan divides, or the search ended early
  bool fits = true;
  int stage = 0;  // does not fit: the fullest, and what it lacks
  std::int64_t shortfall_bytes = 0;
  std::vector<Relaxation> relaxations = {};
  std::vector<Pruned> reasons = {};  // no plan divides: why, a few
};

/// One change of the machine.
struct WhatIf {
  std::string what;                          // "compute", "bandwidth", "memory"
  std::int64_t change_ppm = 0;               // -100000, +100000
  std::optional<std::int64_t> step_ps = {};  // of the explained plan; none: it does not fit
  std::optional<SimulatedPlan> best = {};    // fastest plan found there; none: nothing fits
  bool best_changes = false;                 // against the fastest plan of the unchanged machine
};

/// Per cent of step time for a per cent of the quantity, by central difference over ±10 %: (t(+10
/// %) - t(-10 %)) / (0.2 t).
struct Elasticity {
  std::string what;
  double value = 0;  // negative: more of it saves time
};

/// Whether the fastest plan stays faster than the next few that are known when prices err as
/// costmodel/uncertainty/uncertainty.h draws them, both plans in the same draws:
///   kCertain  in every draw
///   kLikely   the error of their difference, at 80 %, does not reach zero: none is faster in a
///             tenth of the draws
///   kOpen     one is
enum class Stability : std::uint8_t { kCertain, kLikely, kOpen };
std::string_view to_string(Stability s);  // "certain", "likely", "open"

/// The other plan whose order against the fastest is the least sure: it is faster in the most
/// draws.
struct LeastSure {
  plan::Plan plan;
  std::int64_t gap_ps = 0;
  double share_faster = 0;
};

struct Explanation {
  SimulatedPlan plan;
  Limits limits;
  TimeBound bound = TimeBound::kCompute;
  Status search_status = Status::kInfeasible;
  std::vector<Decision> decisions;
  // fastest first; may hold faster plans than the explained one
  std::vector<Comparison> others;
  // fastest with one strategy for all layers in equal stages (uniform_sweep.h); none: none fits
  std::optional<Comparison> uniform;
  std::uint64_t uniform_plans = 0;  // of so many priced
  std::size_t simulated = 0;        // plans simulated on the machine as it is
  std::optional<Versus> versus;
  std::vector<WhatIf> what_ifs;
  std::vector<Elasticity> elasticities;   // bandwidth, compute
  std::vector<Improvement> improvements;  // largest gain first
  MemoryMarks memory_marks;
  std::optional<Release> release;  // of what binds time
  costmodel::Uncertainty uncertainty;
  costmodel::Band band;  // of the explained plan
  // from the fastest plan known (explained or rival) to the next; 0: there is none
  std::int64_t gap_ps = 0;
  std::optional<LeastSure> least_sure;  // none: there is no other plan
  Stability stability = Stability::kOpen;
  // the plan does not fit: changes of it that do, smallest first
  std::vector<Relaxation> relaxations;
  std::vector<Relaxation> problem_relaxations;  // no plan fits: what would help
};

/// Every other plan that is known and fits, each once, fastest first: of `others`, `decisions`,
/// `uniform`, `versus`. Points into the explanation.
std::vector<const Comparison*> rivals(const Explanation& e);

/// Errors: a plan that is not valid for the model or has more ranks than the cluster; those of
/// find_plan.
base::Result<Explanation> explain(const costmodel::CostModel& cost, const ExplainRequest& request);

}  // namespace orrery::search
