#include <fmt/format.h>

#include <array>
#include <string>

#include "base/json.h"
#include "base/numbers.h"
#include "base/units.h"
#include "sim/scenario/goodput.h"
#include "sim/scenario/scenario_run.h"

namespace orrery::sim {
namespace {

constexpr std::array kPercentiles = {5, 50, 95, 99};

std::string time_text(std::int64_t ps) { return base::to_string(base::Seconds(real(ps) / 1e12)); }
std::string change_text(std::int64_t ps) {
  return (ps < 0 ? "-" : "+") + time_text(ps < 0 ? -ps : ps);
}

}  // namespace

base::Json to_json(const ScenarioOutcome& outcome) {
  const topologies::Topology& topology = outcome.prices.topology();
  base::Json stages = base::Json::array(), links = base::Json::array();
  for (const ScenarioOutcome::Stage& s : outcome.stages) {
    stages.push_back({{"compute_s", seconds(s.compute_ps)},
                      {"communication_s", seconds(s.communication_ps)},
                      {"waiting_s", seconds(s.waiting_ps)},
                      {"slowest_rank", s.slowest}});
  }
  for (const ScenarioOutcome::LinkUse& l : outcome.busiest) {
    links.push_back({{"link", link_name(topology, l.link)},
                     {"busy", l.share},
                     {"bytes_per_s", l.bytes_per_second},
                     {"built_bytes_per_s", l.built_bytes_per_second}});
  }
  base::Json json{{"name", outcome.name},
                  {"step_time_without_s", seconds(outcome.without_ps)},
                  {"step_time_without_ps", outcome.without_ps},
                  {"cost", outcome.cost()},
                  {"ranks_told_apart", outcome.cells},
                  {"waiting_stage", outcome.waiting_stage()},
                  {"stages", stages},
                  {"busiest_links", links},
                  {"notes", outcome.notes}};
  if (!outcome.jobs.empty()) {
    base::Json jobs = base::Json::array(), shared = base::Json::array();
    for (const ScenarioOutcome::Job& j : outcome.jobs) {
      jobs.push_back({{"name", j.name},
                      {"ranks", j.ranks},
                      {"steps", j.steps},
                      {"step_time_alone_s", seconds(j.alone_ps)},
                      {"step_time_s", seconds(j.together_ps)},
                      {"slowdown", j.slowdown()}});
    }
    for (const ScenarioOutcome::LinkUse& l : outcome.shared)
      shared.push_back(
          {{"link", link_name(topology, l.link)}, {"busy", l.share}, {"busy_by_job", l.of_jobs}});
    json["jobs"] = std::move(jobs);
    json["shared_links"] = outcome.shared_links;
    json["busiest_shared_links"] = std::move(shared);
  }
  const std::vector<std::int64_t>& drawn = outcome.drawn_ps;
  if (drawn.empty()) return json;
  base::Json draws{
      {"runs", drawn.size()}, {"min_s", seconds(drawn.front())}, {"max_s", seconds(drawn.back())}};
  for (const int p : kPercentiles) draws[fmt::format("p{}_s", p)] = seconds(percentile(drawn, p));
  json["monte_carlo"] = std::move(draws);
  return json;
}

std::string to_text(const ScenarioOutcome& outcome) {
  const topologies::Topology& topology = outcome.prices.topology();
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "scenario     {}: {} with it, {} without, {:+.1f} %\n", outcome.name,
                 time_text(outcome.report.step_time_ps), time_text(outcome.without_ps),
                 100 * outcome.cost());
  for (std::size_t i = 0; i < outcome.stages.size(); ++i) {
    const ScenarioOutcome::Stage& s = outcome.stages[i];
    fmt::format_to(out,
                   "  stage {:>3}  compute {}, communication {}, waiting {} (mean of its ranks; "
                   "rank {}, {}, waits least){}\n",
                   i, change_text(s.compute_ps), change_text(s.communication_ps),
                   change_text(s.waiting_ps), s.slowest, device_name(topology, as_u32(s.slowest)),
                   i == outcome.waiting_stage() && s.waiting_ps > 0 && outcome.stages.size() > 1
                       ? "  <- waits most"
                       : "");
  }
  for (const ScenarioOutcome::LinkUse& l : outcome.busiest) {
    const bool degraded = l.bytes_per_second < l.built_bytes_per_second;
    const double percent = 100 * real(l.bytes_per_second) / real(l.built_bytes_per_second);
    const std::string state = degraded ? fmt::format(", at {:.3g} % of its rate", percent) : "";
    fmt::format_to(out, "  link       {} busy {:.1f} %{}\n", link_name(topology, l.link),
                   100 * l.share, state);
  }
  for (const ScenarioOutcome::Job& j : outcome.jobs) {
    fmt::format_to(
        out, "  job        {} on {} devices: {} a step, {} alone, {:+.1f} % ({} steps)\n", j.name,
        j.ranks, time_text(j.together_ps), time_text(j.alone_ps), 100 * j.slowdown(), j.steps);
  }
  if (!outcome.jobs.empty())
    fmt::format_to(out, "  shared     {} links carry several jobs\n", outcome.shared_links);
  for (const ScenarioOutcome::LinkUse& l : outcome.shared) {
    fmt::format_to(out, "  shared     {} busy {:.1f} %:", link_name(topology, l.link),
                   100 * l.share);
    for (std::size_t j = 0; j < l.of_jobs.size(); ++j)
      fmt::format_to(out, "{} {} {:.1f} %", j > 0 ? "," : "", outcome.jobs[j].name,
                     100 * l.of_jobs[j]);
    text += '\n';
  }
  if (const std::vector<std::int64_t>& drawn = outcome.drawn_ps; !drawn.empty()) {
    fmt::format_to(out, "  runs       {}:", drawn.size());
    for (const int p : kPercentiles)
      fmt::format_to(out, " p{} {}", p, time_text(percentile(drawn, p)));
    fmt::format_to(out, ", from {} to {}\n", time_text(drawn.front()), time_text(drawn.back()));
  }
  for (const std::string& note : outcome.notes) fmt::format_to(out, "  note       {}\n", note);
  return text;
}

}  // namespace orrery::sim
