#pragma once
/// \file
/// A step with a scenario against the same step without: what it costs, where, and how it spreads
/// over seeds.
///
///     cost = step time with / step time without - 1
///
/// Both are run rank by rank (rank_cells.h), folded unless there is jitter. Of every stage the
/// means over its ranks of computing, exposed communication and waiting add up to the step time, so
/// their differences, with against without, add up to what the scenario costs (each rounded to a
/// picosecond).
///
/// Jobs beside the plan start when they are stated to and repeat their step, and so does the plan,
/// until all have done `steps`. Of each
///
///     slowdown = mean of its first `steps` steps together
///                / the same alone on the same changed machine - 1
///
/// and of links that carry several of them the share of each in what the link could have carried
/// until the plan's first step ended. Everything else is about that first step.
///
/// Monte-Carlo: run i has the jitter of seed derive(seed, i), i = 0 .. draws-1, whatever thread
/// runs it. Percentiles are those of nearest rank.
#include <cstdint>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/numbers.h"
#include "base/result.h"
#include "sim/cells/rank_cells.h"
#include "sim/scenario/scenario.h"

namespace orrery::sim {

/// Scenario::jobs made ready: prices on the cluster of the plan.
struct ScenarioJob {
  const plan::Program* program = nullptr;
  costmodel::CostModel cost;
};

struct ScenarioOptions {
  SimOptions show = {};
  int draws = 0;  // of a Monte-Carlo; 0: none
  int threads = 1;
  bool fold = true;
  std::vector<ScenarioJob> jobs = {};  // those of the scenario, in order
};

struct ScenarioOutcome {
  struct Stage {
    // with - without, means over ranks
    std::int64_t compute_ps = 0, communication_ps = 0, waiting_ps = 0;
    int slowest = 0;  // rank that waits least
  };
  struct LinkUse {
    topologies::LinkId link;
    // the former the least in the step
    std::int64_t bytes_per_second = 0, built_bytes_per_second = 0;
    // of what it could have carried
    double share = 0;
    std::vector<double> of_jobs = {};  // the same by job
  };
  struct Job {
    std::string name;
    int ranks = 0;
    std::size_t steps = 0;  // that ended
    // means of the first steps, to a picosecond
    std::int64_t alone_ps = 0, together_ps = 0;
    [[nodiscard]] double slowdown() const { return real(together_ps) / real(alone_ps) - 1; }
  };
  // on the changed machine, as the first era has it, devices numbered as the plan's ranks
  costmodel::CostModel prices;
  std::string name = {};
  std::int64_t without_ps = 0;
  SimReport report = {};  // with
  std::size_t cells = 0;  // ranks that were distinguished
  std::vector<Stage> stages = {};
  // at most kBusiest, of links that carry anything; of those alike in share and ends the first
  std::vector<LinkUse> busiest = {};
  // the plan and those beside it; empty: it has the machine to itself
  std::vector<Job> jobs = {};
  std::vector<LinkUse> shared = {};         // links that carry several jobs, as `busiest`
  std::size_t shared_links = 0;             // how many do
  std::vector<std::int64_t> drawn_ps = {};  // steps of a Monte-Carlo, ascending; empty: none
  std::vector<std::string> notes = {};      // parts of the scenario that this step does not meet
  static constexpr std::size_t kBusiest = 5;

  [[nodiscard]] double cost() const { return real(report.step_time_ps) / real(without_ps) - 1; }
  /// Of the stage that waits longest because of the scenario.
  [[nodiscard]] std::size_t waiting_stage() const;
};

/// Errors: those of simulate(), RankStep, apply_links() and background_flows(); kUnsupported for
/// background traffic or jobs where a profile's measured rates stand for the links; kInconsistent
/// for draws without jitter, and for jobs that their hosts do not hold, that meet on a host, or are
/// priced on other links.
base::Result<ScenarioOutcome> run_scenario(const plan::Program& program,
                                           const costmodel::CostModel& cost,
                                           const Scenario& scenario,
                                           const ScenarioOptions& options = {});

/// `scenario` in orrery.simulation/1 (docs/schemas.md).
base::Json to_json(const ScenarioOutcome& outcome);
/// What a person reads, a line each.
std::string to_text(const ScenarioOutcome& outcome);

}  // namespace orrery::sim
