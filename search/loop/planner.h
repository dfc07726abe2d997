#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "costmodel/closed_form/closed_form.h"
#include "costmodel/cost_model.h"
#include "plan/program/plan.h"
#include "search/proof/certificate.h"
#include "search/space/space.h"
#include "search/status.h"
#include "sim/simulate.h"

namespace orrery::search {

struct Progress {
  std::uint64_t done = 0, total = 0;
  std::int64_t incumbent_ps = 0, bound_ps = 0;  // 0: none
  std::string_view of = "problems";             // (pp, micro-batches, schedule, vocabulary)
};

/// A plan that is known from elsewhere: what it beats need not be found, and an answer may have no
/// candidate at all.
struct KnownPlan {
  std::int64_t closed_form_ps = std::numeric_limits<std::int64_t>::max() / 4;
  std::int64_t step_ps = std::numeric_limits<std::int64_t>::max() / 4;  // simulated
  bool only_better = false;  // plans that are expected to be worse are no candidates either
  [[nodiscard]] bool some() const { return step_ps < KnownPlan{}.step_ps; }
};

struct PlanRequest {
  std::string cluster;  // as the user said it: goes into the plan
  int hosts = 1;
  std::int64_t memory_bytes = 0;  // per device; 0: every device's own
  std::int64_t global_batch = 0;
  int top = 8;  // candidates: plans that are simulated with their reports
  int threads = 1;
  std::uint64_t max_states =
      0;  // effort limit in dynamic-program states; 0: none. Reached: status kBudget with its gap
  Space space;
  // With energy all costs are (search and certificate; a plan's report says its time) the step's
  // energy as time (costmodel/closed_form/layer_energy.h).
  costmodel::Objective objective = costmodel::Objective::kTime;
  bool relax = true;        // infeasible: look for relaxations
  bool multipliers = true;  // the certificate states its multipliers
  bool orders = true;  // of a mixed cluster: every order of its devices, else as ranks count them
  KnownPlan known = {};
  // Without, the answer has no candidate; its first runner-up is the best by closed form. Not of a
  // mixed cluster in every order.
  bool simulates = true;
  std::function<void(const Progress&)> on_progress;  // may be empty
};

struct Candidate {
  plan::Plan plan;
  std::int64_t closed_form_ps = 0;
  sim::SimReport report;
  std::int64_t energy_ps = 0;  // 0 where time is minimised
  /// What is minimised.
  [[nodiscard]] std::int64_t simulated_ps() const { return report.step_time_ps + energy_ps; }
};

/// The best known plan of another shape than the answer's, with its expected time
/// (costmodel/closed_form/step_times.h), or what the simulator said of it: its time, or where it
/// was cut off as slower the time by then.
struct RunnerUp {
  plan::Plan plan;
  std::int64_t closed_form_ps = 0, expected_ps = 0, energy_ps = 0;
};

/// A way out of infeasibility, smallest change first.
struct Relaxation {
  std::string change;             // "memory 36 GiB → 41.3 GiB", "recompute=full", "16 devices"
  std::int64_t memory_bytes = 0;  // needed per device
  std::int64_t step_time_ps = 0;  // predicted with it; 0 unknown
};

struct PlanAnswer {
  Status status = Status::kInfeasible;
  std::vector<Candidate> candidates;  // simulated, fastest first; [0] is the answer
  std::vector<RunnerUp> runners_up;   // beside the candidates, fastest first
  Certificate certificate;
  std::vector<Pruned> pruned;
  std::uint64_t states = 0;    // dynamic-program states
  std::uint64_t problems = 0;  // (pp, m, schedule, vocabulary) problems solved or pruned
  int order_changes = 0;       // pairs of the top k that simulation put the other way round
  // infeasible:
  // least peak over the space minus the limit; 0: no strategy divides model and batch
  std::int64_t shortfall_bytes = 0;
  std::vector<Relaxation> relaxations;
};

/// Exact search. A cluster with several kinds of device is searched in every order of them
/// (topologies/device_order.h): the answer is the best over all orders, its plan says which
/// (Plan::device_order). `cost` may count ranks in any order. Errors are wrong inputs only;
/// "nothing fits" is an answer.
base::Result<PlanAnswer> find_plan(const costmodel::CostModel& cost, const PlanRequest& request);

}  // namespace orrery::search
