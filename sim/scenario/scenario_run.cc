#include "sim/scenario/scenario_run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "base/process.h"
#include "base/rng.h"

namespace orrery::sim {
namespace {

using base::ErrorCode;

std::vector<ScenarioOutcome::Stage> stages_of(const plan::Program& program, const RankOutcome& with,
                                              const RankOutcome& without) {
  std::vector<ScenarioOutcome::Stage> stages;
  for (const plan::RankClass& k : program.classes) {
    kernel::Int128 compute = 0, communication = 0, waiting = 0;
    int slowest = k.first_rank;
    for (int rank = k.first_rank; rank < k.first_rank + k.count; ++rank) {
      const ClassOutcome &a = with.of(rank), &b = without.of(rank);
      compute += a.busy_compute_ps - b.busy_compute_ps;
      communication += a.all_exposed_ps() - b.all_exposed_ps();
      waiting += a.idle_ps - b.idle_ps;
      if (a.idle_ps < with.of(slowest).idle_ps) slowest = rank;
    }
    const auto mean = [&](kernel::Int128 sum) { return std::llround(real(sum) / k.count); };
    stages.push_back({mean(compute), mean(communication), mean(waiting), slowest});
  }
  return stages;
}

/// Rates of a link in the eras of the step.
std::int64_t least_rate(const RankJob& job, const std::vector<std::int64_t>& from_ps,
                        std::int64_t step_ps, topologies::LinkId link) {
  std::int64_t least = job.costs.front().topology().link(link).bytes_per_second;
  for (std::size_t e = 1; e < from_ps.size() && from_ps[e] < step_ps; ++e)
    least = std::min(least, job.costs[e].topology().link(link).bytes_per_second);
  return least;
}

/// The first uses by share; of several that are called the same in their hosts and are as busy,
/// one.
std::vector<ScenarioOutcome::LinkUse> first_of(std::vector<ScenarioOutcome::LinkUse> uses,
                                               const topologies::Topology& topology) {
  std::ranges::stable_sort(uses, std::greater<>(), &ScenarioOutcome::LinkUse::share);
  std::set<std::tuple<std::string, std::string, double>> seen;
  std::vector<ScenarioOutcome::LinkUse> kept;
  for (auto& use : uses) {
    const topologies::Link& link = topology.link(use.link);
    const auto group = [&](topologies::VertexId v) {
      return topology.vertex(v).name.substr(0, topology.vertex(v).name.find('['));
    };
    if (kept.size() < ScenarioOutcome::kBusiest &&
        seen.emplace(group(link.from), group(link.to), use.share).second)
      kept.push_back(std::move(use));
  }
  return kept;
}

void add_links(const RankJob& plan, const std::vector<std::int64_t>& from_ps,
               const RankOutcome& ran, ScenarioOutcome& outcome) {
  const topologies::Topology& topology = plan.costs.front().topology();
  std::vector<std::map<topologies::LinkId, double>> of_job;
  for (const auto& links : ran.job_links) {
    of_job.emplace_back();
    for (const Picture::Link& l : links) of_job.back().emplace(l.link, l.share);
  }
  std::vector<ScenarioOutcome::LinkUse> all, shared;
  for (const Picture::Link& l : ran.links) {
    ScenarioOutcome::LinkUse use{l.link, least_rate(plan, from_ps, ran.step_ps, l.link),
                                 outcome.prices.topology().built_rate(l.link), l.share};
    all.push_back(use);
    for (const auto& shares : of_job)
      use.of_jobs.push_back(shares.contains(l.link) ? shares.at(l.link) : 0);
    if (std::ranges::count_if(use.of_jobs, [](double s) { return s > 0; }) > 1)
      shared.push_back(std::move(use));
  }
  outcome.busiest = first_of(std::move(all), topology);
  outcome.shared_links = shared.size();
  outcome.shared = first_of(std::move(shared), topology);
}

/// What the scenario names and the step does not meet.
std::vector<std::string> notes_of(const std::vector<RankJob>& jobs, const Scenario& scenario,
                                  const RankOutcome& with, const RankOutcome& without) {
  std::vector<std::string> notes;
  std::set<std::uint32_t> used;
  for (const RankJob& job : jobs) used.insert(job.devices.begin(), job.devices.end());
  std::size_t idle = 0;
  for (std::uint32_t d = 0; d < scenario.compute_ppm.size(); ++d)
    idle += scenario.compute_ppm[d] != Jitter::kMillion && !used.contains(d) ? 1 : 0;
  if (idle > 0) notes.push_back(fmt::format("{} slow devices run no rank of this plan", idle));
  std::set<topologies::LinkId> changed, carried;
  for (const Scenario::LinkEra& era : scenario.links)
    for (const topologies::LinkRate& rate : era.links) changed.insert(rate.link);
  if (jobs.front().costs.front().communication_origin() == costmodel::Origin::kMeasured)
    changed.clear();
  for (const RankOutcome* outcome : {&with, &without})
    for (const Picture::Link& l : outcome->links) carried.insert(l.link);
  const auto unused =
      std::ranges::count_if(changed, [&](topologies::LinkId l) { return !carried.contains(l); });
  if (unused > 0)
    notes.push_back(
        fmt::format("{} of {} changed links carry nothing of this step", unused, changed.size()));
  const auto late = std::ranges::count_if(
      scenario.links, [&](const Scenario::LinkEra& era) { return era.from_ps >= with.step_ps; });
  if (late > 0)
    notes.push_back(fmt::format("{} changes of links come after the step has ended", late));
  return notes;
}

base::Result<std::vector<std::int64_t>> draw(const RankStep& step, const Jitter& jitter, int count,
                                             int threads) {
  std::vector<std::int64_t> ends(as_index(count), 0);
  std::vector<std::optional<base::Diagnostics>> faults(ends.size());
  const auto run = [&](std::size_t i) {
    Jitter own = jitter;
    own.seed = base::derive(jitter.seed, i);
    if (const auto outcome = step.run(own))
      ends[i] = outcome->step_ps;
    else
      faults[i] = outcome.error();
  };
  base::run_in_parallel(ends.size(), threads, [&] { return run; });
  for (const auto& fault : faults)
    if (fault) return base::fail(*fault);
  std::ranges::sort(ends);
  return ends;
}

/// Jobs have whole hosts, so they meet on links between hosts alone.
bool measured_across_hosts(const costmodel::CostModel& cost) {
  return cost.profile() &&
         std::ranges::any_of(cost.profile()->collectives,
                             [](const model::CollectiveTimes& t) { return t.hosts > 1; });
}

base::Result<void> check(const costmodel::CostModel& cost, const Scenario& scenario,
                         const ScenarioOptions& options) {
  if (options.draws > 0 && scenario.jitter.sigma_ppm == 0) {
    return base::fail(
        base::make_error(ErrorCode::kInconsistent,
                         "a Monte-Carlo of a scenario without jitter: every run would be the same")
            .with_hint("add 'jitter: {sigma: 0.02}' to the scenario"));
  }
  if (scenario.background.empty() && (scenario.jobs.empty() || !measured_across_hosts(cost)))
    return {};
  if (cost.communication_origin() != costmodel::Origin::kMeasured) return {};
  const bool jobs = scenario.background.empty();
  return base::fail(
      base::make_error(
          ErrorCode::kUnsupported,
          "{} beside profile '{}': its measured rates stand for the links, nothing is shared",
          jobs ? "other jobs" : "background traffic", cost.profile()->name)
          .at(jobs ? scenario.jobs_place : scenario.background_place)
          .with_hint("leave --profile out: communication is then priced by links; or state the "
                     "links as degraded"));
}

/// A job as the scenario places it.
struct Placed {
  const plan::Program* program;
  const costmodel::CostModel* cost;
  const std::vector<std::uint32_t>* hosts;
  std::string name;
  std::int64_t start_ps;
  base::SourceSpan place;
};

/// The hosts of a job that is placed, or those that the plan takes.
base::Result<void> check_places(const std::vector<Placed>& jobs,
                                const topologies::Topology& cluster) {
  const auto each = as_int(cluster.devices_per_host());
  std::map<std::uint32_t, const Placed*> taken;
  for (const Placed& job : jobs) {
    const bool anywhere = job.hosts->empty() && &job == &jobs.front();
    const int room = as_int(anywhere ? cluster.hosts() : job.hosts->size()) * each;
    if (job.program->world_size > room)
      return base::fail_at(job.place, ErrorCode::kInconsistent,
                           "{} has {} ranks, and its hosts have {} devices", job.name,
                           job.program->world_size, room);
    for (const std::uint32_t device : devices_of(*job.hosts, job.program->world_size, cluster)) {
      const auto [at, fresh] = taken.try_emplace(device / cluster.devices_per_host(), &job);
      if (!fresh && at->second != &job) {
        return base::fail(
            base::make_error(ErrorCode::kInconsistent, "{} and {} both run on host {}",
                             at->second->name, job.name, at->first)
                .at(job.place)
                .with_hint("'hosts' of the scenario says where the plan itself runs; --hosts adds "
                           "hosts"));
      }
    }
    if (job.cost->topology().fingerprint() != cluster.fingerprint() ||
        job.cost->overlap_slowdown_ppm() != jobs.front().cost->overlap_slowdown_ppm() ||
        job.cost->overlaps() != jobs.front().cost->overlaps()) {
      return base::fail_at(job.place, ErrorCode::kInconsistent,
                           "{} is priced for other links than the plan", job.name);
    }
  }
  return {};
}

std::vector<Placed> placed_jobs(const plan::Program& program, const costmodel::CostModel& cost,
                                const Scenario& scenario, const ScenarioOptions& options) {
  ORRERY_CHECK(options.jobs.size() == scenario.jobs.size(), "{} of {} jobs are ready",
               options.jobs.size(), scenario.jobs.size());
  std::vector<Placed> jobs = {
      {&program, &cost, &scenario.hosts, "this plan", 0, scenario.hosts_place}};
  for (std::size_t j = 0; j < scenario.jobs.size(); ++j) {
    const Scenario::Job& job = scenario.jobs[j];
    jobs.push_back({options.jobs[j].program, &options.jobs[j].cost, &job.hosts, job.name,
                    job.start_ps, scenario.jobs_place});
  }
  return jobs;
}

/// Prices of a job on `machine`, whose devices are numbered as its ranks.
costmodel::CostModel prices_on(const Placed& job, const topologies::Topology& machine) {
  return job.cost->on(job.hosts->empty() ? machine : machine.with_hosts_first(*job.hosts));
}

base::Result<RankJob> job_on(const Placed& job, const Scenario& scenario) {
  const topologies::Topology& cluster = job.cost->topology();
  RankJob made{.program = job.program,
               .devices = devices_of(*job.hosts, job.program->world_size, cluster),
               .start_ps = job.start_ps};
  TRY(const std::vector<topologies::Topology> machines,
      apply_links(scenario, cluster, made.devices));
  for (const topologies::Topology& machine : machines)
    made.costs.push_back(prices_on(job, machine));
  for (const std::uint32_t device : made.devices)
    if (!scenario.compute_ppm.empty()) made.compute_ppm.push_back(scenario.compute_ppm[device]);
  return made;
}

/// Mean of the first steps.
std::int64_t mean_step(const RankOutcome& outcome, std::size_t job, std::int64_t start_ps,
                       int steps) {
  return std::llround(real(outcome.cells.steps_end_ps[job][as_index(steps) - 1] - start_ps) /
                      steps);
}

/// Every job together, and by itself on the same machine.
base::Result<std::vector<ScenarioOutcome::Job>> compare_jobs(const std::vector<Placed>& placed,
                                                             const std::vector<RankJob>& jobs,
                                                             const RankScene& scene,
                                                             const Scenario& scenario,
                                                             const RankOutcome& together) {
  std::vector<ScenarioOutcome::Job> compared;
  if (jobs.size() == 1) return compared;
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    TRY(const RankStep step, RankStep::make({jobs[j]}, scene));
    TRY(const RankOutcome alone, step.run(scenario.jitter));
    compared.push_back({placed[j].name, jobs[j].program->world_size,
                        together.cells.steps_end_ps[j].size(),
                        mean_step(alone, 0, jobs[j].start_ps, scene.steps),
                        mean_step(together, j, jobs[j].start_ps, scene.steps)});
  }
  return compared;
}

}  // namespace

std::size_t ScenarioOutcome::waiting_stage() const {
  const auto most = std::ranges::max_element(stages, {}, &Stage::waiting_ps);
  return as_index(most - stages.begin());
}

base::Result<ScenarioOutcome> run_scenario(const plan::Program& program,
                                           const costmodel::CostModel& cost,
                                           const Scenario& scenario,
                                           const ScenarioOptions& options) {
  TRY_VOID(check(cost, scenario, options));
  const std::vector<Placed> placed = placed_jobs(program, cost, scenario, options);
  TRY_VOID(check_places(placed, cost.topology()));
  const costmodel::CostModel healthy =
      scenario.hosts.empty() ? cost : prices_on(placed.front(), cost.topology());
  TRY(const RankOutcome without, simulate_ranks(program, healthy, {.fold = options.fold}));
  std::vector<RankJob> jobs;
  for (const Placed& job : placed) {
    TRY(jobs.emplace_back(), job_on(job, scenario));
  }
  RankScene scene{.from_ps = {},
                  .background = {},
                  .steps = scenario.steps,
                  .fold = options.fold && scenario.jitter.sigma_ppm == 0};
  for (const Scenario::LinkEra& era : scenario.links) {
    scene.from_ps.push_back(era.from_ps);
    TRY(scene.background.emplace_back(),
        background_flows(scenario, cost.topology().with_links(era.links)));
  }
  TRY(const RankStep step, RankStep::make(jobs, scene));
  TRY(RankOutcome with, step.run(scenario.jitter, options.show));

  ScenarioOutcome outcome{.prices = jobs.front().costs.front()};
  outcome.name = scenario.name;
  outcome.without_ps = without.step_ps;
  outcome.cells = with.cells.classes.size();
  outcome.stages = stages_of(program, with, without);
  add_links(jobs.front(), scene.from_ps, with, outcome);
  outcome.notes = notes_of(jobs, scenario, with, without);
  TRY(outcome.jobs, compare_jobs(placed, jobs, scene, scenario, with));
  outcome.report = std::move(with.report);
  if (options.draws > 0) {
    TRY(outcome.drawn_ps, draw(step, scenario.jitter, options.draws, options.threads));
  }
  return outcome;
}

}  // namespace orrery::sim
