#include "sim/scenario_run.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace orrery::sim {
namespace {

using base::ErrorCode;

/// Means over the ranks of a stage.
struct Account {
  kernel::Int128 compute = 0, communication = 0, waiting = 0;
  int slowest = 0;
};
Account account_of(const plan::RankClass& stage, const RankOutcome& outcome) {
  Account a;
  a.slowest = stage.first_rank;
  const auto idle = [&](int rank) { return outcome.of(static_cast<std::size_t>(rank)).idle_ps; };
  for (int rank = stage.first_rank; rank < stage.first_rank + stage.count; ++rank) {
    const ClassOutcome& out = outcome.of(static_cast<std::size_t>(rank));
    a.compute += out.busy_compute_ps;
    a.waiting += out.idle_ps;
    a.communication += std::accumulate(out.exposed_ps.begin(), out.exposed_ps.end(), std::int64_t{0});
    if (idle(rank) < idle(a.slowest)) a.slowest = rank;
  }
  return a;
}

std::vector<ScenarioOutcome::Stage> stages_of(const plan::Program& program, const RankOutcome& with, const RankOutcome& without) {
  std::vector<ScenarioOutcome::Stage> stages;
  for (const plan::RankClass& k : program.classes) {
    const Account a = account_of(k, with), b = account_of(k, without);
    const auto mean = [&](kernel::Int128 sum) { return std::llround(static_cast<double>(sum) / k.count); };
    stages.push_back({mean(a.compute - b.compute), mean(a.communication - b.communication), mean(a.waiting - b.waiting), a.slowest});
  }
  return stages;
}

/// The busiest links; of several that are called the same in their hosts and are as busy, one.
std::vector<ScenarioOutcome::LinkUse> busiest_of(const topologies::Topology& topology, const RankOutcome& outcome) {
  std::vector<ScenarioOutcome::LinkUse> uses;
  for (const Picture::Link& l : outcome.links) {
    const std::int64_t rate = topology.link(l.link).bytes_per_second;
    const double share = static_cast<double>(l.bytes) / (static_cast<double>(rate) * static_cast<double>(outcome.step_ps) / 1e12);
    uses.push_back({l.link, rate, topology.built_rate(l.link), share});
  }
  std::stable_sort(uses.begin(), uses.end(), [](const auto& a, const auto& b) { return a.share > b.share; });
  std::set<std::tuple<std::string, std::string, double>> seen;
  std::vector<ScenarioOutcome::LinkUse> kept;
  for (const auto& use : uses) {
    const topologies::Link& link = topology.link(use.link);
    const auto group = [&](topologies::VertexId v) { return topology.vertex(v).name.substr(0, topology.vertex(v).name.find('[')); };
    if (kept.size() < ScenarioOutcome::kBusiest && seen.emplace(group(link.from), group(link.to), use.share).second) kept.push_back(use);
  }
  return kept;
}

/// What the scenario names and the step does not meet.
std::vector<std::string> notes_of(const plan::Program& program, const costmodel::CostModel& cost, const Scenario& scenario, const RankOutcome& with,
                                  const RankOutcome& without) {
  std::vector<std::string> notes;
  const auto world = static_cast<std::size_t>(program.world_size);
  std::size_t idle = 0;
  for (std::size_t d = world; d < scenario.compute_ppm.size(); ++d) idle += scenario.compute_ppm[d] != Jitter::kMillion ? 1 : 0;
  if (idle > 0) notes.push_back(fmt::format("{} slow devices run no rank of this plan", idle));
  if (scenario.links.empty() || cost.communication_origin() == costmodel::Origin::kMeasured) return notes;
  std::set<topologies::LinkId> carried;
  for (const RankOutcome* outcome : {&with, &without})
    for (const Picture::Link& l : outcome->links) carried.insert(l.link);
  std::size_t unused = 0;
  for (const topologies::LinkRate& rate : scenario.links) unused += carried.contains(rate.link) ? 0 : 1;
  if (unused > 0) notes.push_back(fmt::format("{} of {} changed links carry nothing of this step", unused, scenario.links.size()));
  return notes;
}

base::Result<ScenarioOutcome::Draws> draw(const RankStep& step, const Jitter& jitter, int count, int threads) {
  std::vector<std::int64_t> ends(static_cast<std::size_t>(count), 0);
  std::vector<std::optional<base::Diagnostics>> faults(ends.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < ends.size(); i = next++) {
      Jitter own = jitter;
      own.seed = base::derive(jitter.seed, i);
      if (const auto outcome = step.run(own)) ends[i] = outcome->step_ps;
      else faults[i] = outcome.error();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int t = 1; t < std::min(threads, count); ++t) helpers.emplace_back(work);
    work();
  }
  for (const auto& fault : faults)
    if (fault) return base::fail(*fault);
  ScenarioOutcome::Draws draws;
  std::sort(ends.begin(), ends.end());
  draws.step_ps = std::move(ends);
  return draws;
}

base::Result<void> check(const costmodel::CostModel& cost, const Scenario& scenario, const ScenarioOptions& options) {
  if (options.draws > 0 && scenario.jitter.sigma_ppm == 0) {
    base::Diagnostic d = base::make_error(ErrorCode::kInconsistent, "a Monte-Carlo of a scenario without jitter: every run would be the same");
    d.hint = "add 'jitter: {sigma: 0.02}' to the scenario";
    return base::fail(std::move(d));
  }
  if (!scenario.background.empty() && cost.communication_origin() == costmodel::Origin::kMeasured) {
    base::Diagnostic d = base::make_error(ErrorCode::kUnsupported,
                                          "background traffic beside profile '{}': its measured rates stand for the links, nothing is shared",
                                          cost.profile()->name);
    d.where = scenario.background_place;
    d.hint = "leave --profile out: communication is then priced by links; or state the links as degraded";
    return base::fail(std::move(d));
  }
  return {};
}

}  // namespace

std::int64_t ScenarioOutcome::Draws::percentile_ps(double p) const {
  ORRERY_CHECK(!step_ps.empty() && p > 0 && p <= 100, "percentile {} of {}", p, step_ps.size());
  const auto rank = static_cast<std::size_t>(std::ceil(p / 100 * static_cast<double>(step_ps.size())));
  return step_ps[std::clamp<std::size_t>(rank, 1, step_ps.size()) - 1];
}

std::size_t ScenarioOutcome::waiting_stage() const {
  const auto most = std::max_element(stages.begin(), stages.end(), [](const Stage& a, const Stage& b) { return a.waiting_ps < b.waiting_ps; });
  return static_cast<std::size_t>(most - stages.begin());
}

base::Result<ScenarioOutcome> run_scenario(const plan::Program& program, const costmodel::CostModel& cost, const Scenario& scenario,
                                           const ScenarioOptions& options) {
  TRY_VOID(check(cost, scenario, options));
  std::vector<std::uint32_t> ranks(static_cast<std::size_t>(program.world_size));
  std::iota(ranks.begin(), ranks.end(), 0U);
  TRY(const RankOutcome without, simulate_ranks(program, cost, {.fold = options.fold}));
  TRY(topologies::Topology changed, apply_links(scenario, cost.topology(), ranks));
  RankOptions asked{.fold = options.fold && scenario.jitter.sigma_ppm == 0};
  TRY(asked.background, background_flows(scenario, changed));
  if (!scenario.compute_ppm.empty()) asked.compute_ppm.assign(scenario.compute_ppm.begin(), scenario.compute_ppm.begin() + program.world_size);
  const costmodel::CostModel there = cost.on(std::move(changed));
  TRY(const RankStep step, RankStep::make(program, there, asked));
  TRY(RankOutcome with, step.run(scenario.jitter, options.show));

  ScenarioOutcome outcome;
  outcome.name = scenario.name;
  outcome.without_ps = without.step_ps;
  outcome.report = std::move(with.report);
  outcome.cells = with.cells.classes.size();
  outcome.stages = stages_of(program, with, without);
  outcome.busiest = busiest_of(there.topology(), with);
  outcome.notes = notes_of(program, cost, scenario, with, without);
  if (options.draws > 0) {
    TRY(outcome.draws, draw(step, scenario.jitter, options.draws, options.threads));
  }
  return outcome;
}

}  // namespace orrery::sim
