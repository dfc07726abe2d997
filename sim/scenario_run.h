#pragma once
/// \file
/// A step with a scenario against the same step without: what it costs, where, and how it spreads over seeds.
///
///     cost = step time with / step time without - 1
///
/// Both are run rank by rank (rank_cells.h), folded unless there is jitter. Of every stage the means over its ranks of computing, exposed communication and
/// waiting add up to the step time, so their differences, with against without, add up to what the scenario costs (each rounded to a picosecond).
///
/// Monte-Carlo: run i has the jitter of seed derive(seed, i), i = 0 .. draws-1, whatever thread runs it. Percentiles are those of nearest rank.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "sim/rank_cells.h"
#include "sim/scenario.h"

namespace orrery::sim {

struct ScenarioOptions {
  SimOptions show = {};
  int draws = 0;     // of a Monte-Carlo; 0: none
  int threads = 1;
  bool fold = true;
};

struct ScenarioOutcome {
  struct Stage {
    std::int64_t compute_ps = 0, communication_ps = 0, waiting_ps = 0;  // with - without, means over ranks
    int slowest = 0;                                                    // rank that waits least
  };
  struct LinkUse {
    topologies::LinkId link;
    std::int64_t bytes_per_second = 0, built_bytes_per_second = 0;
    double share = 0;                                                   // of the time it was busy
  };
  struct Draws {
    std::vector<std::int64_t> step_ps;                                  // ascending
    [[nodiscard]] std::int64_t percentile_ps(double p) const;           // 0 < p <= 100
  };
  std::string name;
  std::int64_t without_ps = 0;
  SimReport report;                    // with
  std::size_t cells = 0;               // ranks that were told apart
  std::vector<Stage> stages;
  std::vector<LinkUse> busiest;        // at most kBusiest, of links that carry anything; of those alike in share and ends the first
  std::optional<Draws> draws;
  std::vector<std::string> notes;      // parts of the scenario that this step does not meet
  static constexpr std::size_t kBusiest = 5;

  [[nodiscard]] double cost() const { return static_cast<double>(report.step_time_ps) / static_cast<double>(without_ps) - 1; }
  /// Of the stage that waits longest because of the scenario.
  [[nodiscard]] std::size_t waiting_stage() const;
};

/// Errors: those of simulate() and RankStep::make(); apply_links() and background_flows(); kUnsupported for background traffic where a profile's
/// measured rates stand for the links; kInconsistent for draws without jitter.
base::Result<ScenarioOutcome> run_scenario(const plan::Program& program, const costmodel::CostModel& cost, const Scenario& scenario,
                                           const ScenarioOptions& options = {});

/// `scenario` in orrery.simulation/1 (docs/schemas.md).
base::Json to_json(const ScenarioOutcome& outcome, const topologies::Topology& topology);
/// What a person reads, a line each.
std::string to_text(const ScenarioOutcome& outcome, const topologies::Topology& topology);

}  // namespace orrery::sim
