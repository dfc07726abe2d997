#include "sim/cells/rank_cells.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/numbers.h"
#include "sim/cells/cell_step.h"
#include "sim/report/picture.h"
#include "sim/report/step_report.h"

namespace orrery::sim {
namespace {

constexpr std::int64_t kMillion = 1'000'000;

base::Result<void> check_speeds(const std::vector<std::int64_t>& compute_ppm, std::size_t world) {
  if (compute_ppm.size() != world)
    return base::fail(base::ErrorCode::kOutOfRange, "{} speeds for {} ranks", compute_ppm.size(),
                      world);
  for (const std::int64_t ppm : compute_ppm) {
    if (ppm < 1)
      return base::fail(base::ErrorCode::kOutOfRange, "a computation of {} millionths of its time",
                        ppm);
  }
  return {};
}

base::Result<void> check_size(std::span<const CellJob> jobs,
                              const std::vector<std::uint32_t>& cell_of_rank) {
  std::int64_t operations = 0;
  std::size_t cells = 0, at = 0;
  for (const CellJob& job : jobs) {
    for (int rank = 0; rank < job.program->world_size; ++rank) {
      if (cell_of_rank[at++] != cells) continue;
      ++cells;
      operations += job.stages->classes[stage_of(*job.program, rank)].op_count();
    }
  }
  if (operations <= RankStep::kMaxOperations) return {};
  return base::fail(base::make_error(base::ErrorCode::kUnsupported,
                                     "{} ranks that differ, {} operations", cells, operations)
                        .with_hint(fmt::format("at most {} are simulated: fewer ranks, larger "
                                               "micro-batches, or no jitter, which tells all "
                                               "ranks apart",
                                               RankStep::kMaxOperations)));
}

}  // namespace

struct RankStep::Ready {
  std::vector<RankJob> jobs;
  int steps;
  bool fold, step_by_step;
  std::int64_t slowdown_ppm;
  kernel::EventQueue no_queue;  // of the network that is copied
  FlowNetwork network;
  std::vector<std::uint32_t> cell_of_rank;
  BuiltCells built;

  Ready(std::vector<RankJob> given, const RankScene& scene)
      : jobs(std::move(given)),
        steps(scene.steps),
        fold(scene.fold),
        step_by_step(scene.step_by_step),
        slowdown_ppm(std::max<std::int64_t>(prices().overlap_slowdown_ppm(), kMillion)),
        network(prices().topology(), slowdown_ppm, no_queue, Interpreter::kFlowEvent) {}
  [[nodiscard]] const costmodel::CostModel& prices() const { return jobs.front().costs.front(); }
  /// [cell] the device of its first rank.
  [[nodiscard]] std::vector<std::uint32_t> devices() const {
    std::vector<std::uint32_t> first;
    std::size_t at = 0;
    for (const RankJob& job : jobs) {
      for (std::uint32_t rank = 0; rank < job.compute_ppm.size(); ++rank) {
        if (cell_of_rank[at++] == first.size())
          first.push_back(job.devices.empty() ? rank : job.devices[rank]);
      }
    }
    return first;
  }
  [[nodiscard]] std::string fingerprint(const RankOutcome& outcome) const {
    base::Fingerprint f;
    for (const RankJob& job : jobs) f.add(job.program->fingerprint());
    for (const std::uint32_t cell : cell_of_rank) add_times(outcome.cells.classes[cell], f);
    return f.hex();
  }
  /// A stage is shown by the cell that computes longest, of equal ones the first.
  void add_report(const FlowNetwork& ran, const SimOptions& options, RankOutcome& outcome) const {
    const plan::Program& program = *jobs.front().program;
    const auto world = static_cast<std::ptrdiff_t>(program.world_size);
    FinishedStep finished{built.step, ran, outcome.cells,
                          {},         {},  {cell_of_rank.begin(), cell_of_rank.begin() + world}};
    for (const plan::RankClass& k : program.classes) {
      int busiest = k.first_rank;
      const auto busy = [&](int rank) { return outcome.of(rank).busy_compute_ps; };
      for (int rank = k.first_rank; rank < k.first_rank + k.count; ++rank)
        busiest = busy(rank) > busy(busiest) ? rank : busiest;
      finished.shown.push_back(cell_of_rank[as_index(busiest)]);
      finished.rank.push_back(busiest);
    }
    outcome.report = step_report(program, prices(), finished, options);
    outcome.report.fingerprint = outcome.fingerprint;
  }
};

namespace {

using StagesOfKinds = std::map<costmodel::DeviceKinds, PreparedStep>;

/// [rank] the stages as its own kind of device runs them, kept in `known`.
base::Result<std::vector<const PreparedStep*>> own_stages(const plan::Program& program,
                                                          const costmodel::CostModel& cost,
                                                          StagesOfKinds& known) {
  std::vector<const PreparedStep*> of_rank;
  for (int rank = 0; rank < program.world_size; ++rank) {
    const auto [at, fresh] = known.try_emplace(cost.kinds_of(rank, 1));
    if (fresh) {
      kernel::EventQueue queue;
      FlowNetwork network(cost.topology(), kMillion, queue, Interpreter::kFlowEvent);
      TRY(at->second, prepare_on(at->first, program, cost, network));
    }
    of_rank.push_back(&at->second);
  }
  return of_rank;
}

}  // namespace

base::Result<RankStep> RankStep::make(std::vector<RankJob> given, const RankScene& scene) {
  ORRERY_CHECK(!given.empty() && scene.steps >= 1 &&
               scene.background.size() == scene.from_ps.size());
  auto ready = std::make_shared<Ready>(std::move(given), scene);
  std::vector<PreparedStep> stages(ready->jobs.size());
  std::vector<StagesOfKinds> kinds(ready->jobs.size());
  std::vector<CellJob> jobs;
  for (std::size_t j = 0; j < ready->jobs.size(); ++j) {
    RankJob& job = ready->jobs[j];
    const auto world = as_index(job.program->world_size);
    TRY_VOID(check_fits(*job.program, job.costs.front()));
    if (job.compute_ppm.empty()) job.compute_ppm.assign(world, kMillion);
    TRY_VOID(check_speeds(job.compute_ppm, world));
    kernel::EventQueue queue;
    FlowNetwork stage_network(job.costs.front().topology(), ready->slowdown_ppm, queue,
                              Interpreter::kFlowEvent);
    TRY(stages[j], prepare(*job.program, job.costs.front(), stage_network));
    jobs.push_back({job.program, &stages[j], {}, {}, job.compute_ppm});
    if (job.costs.front().mixed()) {
      TRY(jobs.back().stages_of, own_stages(*job.program, job.costs.front(), kinds[j]));
    }
    for (const costmodel::CostModel& cost : job.costs)
      jobs.back().messages.emplace_back(*job.program, cost, stages[j]);
  }
  std::vector<CellEra> eras;
  for (std::size_t e = 0; e < scene.from_ps.size(); ++e)
    eras.push_back(
        {scene.from_ps[e], &ready->jobs.front().costs[e].topology(), scene.background[e]});
  const Cells cells = scene.fold ? equitable(jobs, eras) : each_alone(jobs);
  TRY_VOID(check_size(jobs, cells.of_rank));
  ready->built = build_cells(jobs, eras, cells, ready->network);
  ready->cell_of_rank = cells.of_rank;
  return RankStep(std::move(ready));
}

base::Result<RankOutcome> RankStep::run(const Jitter& jitter,
                                        const std::optional<SimOptions>& report) const {
  const Ready& r = *ready_;
  ORRERY_CHECK(jitter.sigma_ppm == 0 || !r.fold, "jitter of folded ranks");
  kernel::EventQueue queue;
  FlowNetwork network(r.network, queue);
  if (r.step_by_step) network.step_by_step();
  InterpreterOptions options{.overlaps = r.prices().overlaps(),
                             .slowdown_ppm = r.slowdown_ppm,
                             .memory_samples = report && report->timeline,
                             .jitter = jitter,
                             .rank = r.devices(),
                             .jobs = {},
                             .steps = r.steps,
                             .chains = !r.step_by_step,
                             .max_operations = kMaxOperations};
  for (std::size_t j = 0; j < r.jobs.size(); ++j)
    options.jobs.push_back({r.built.first_class[j], r.jobs[j].start_ps});
  Interpreter interpreter(r.built.step, network, queue, std::move(options));
  RankOutcome outcome;
  TRY(outcome.cells, interpreter.run());
  outcome.step_ps = outcome.cells.step_ps;
  outcome.cell_of_rank = r.cell_of_rank;
  outcome.fingerprint = r.fingerprint(outcome);
  outcome.links = link_bytes(outcome.cells, network);
  for (std::uint32_t j = 0; j < r.jobs.size(); ++j)
    outcome.job_links.push_back(link_bytes(outcome.cells, network, [&](std::uint32_t transfer) {
      return r.built.transfer_job[transfer] == j;
    }));
  if (report) r.add_report(network, *report, outcome);
  return outcome;
}

base::Result<RankOutcome> simulate_ranks(const plan::Program& program,
                                         const costmodel::CostModel& cost,
                                         const RankOptions& options) {
  std::vector<RankJob> jobs;
  jobs.push_back({.program = &program, .costs = {cost}, .compute_ppm = options.compute_ppm});
  TRY(const RankStep step,
      RankStep::make(std::move(jobs), {.background = {options.background}, .fold = options.fold}));
  return step.run();
}

}  // namespace orrery::sim
