#include "search/explain/simulated_plan.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/numbers.h"
#include "plan/lowering/lower.h"

namespace orrery::search {

std::vector<plan::LayerRun> runs_of(const plan::Plan& plan) {
  std::vector<plan::LayerRun> runs;
  for (const plan::Stage& stage : plan.stages)
    runs.insert(runs.end(), stage.runs.begin(), stage.runs.end());
  return runs;
}

std::string over_layers(const plan::Plan& plan, const Aspect& aspect) {
  std::vector<std::pair<std::string, int>> counts;
  for (const plan::LayerRun& run : runs_of(plan)) {
    const std::string value = aspect(run.strategy);
    const auto at = std::ranges::find(counts, value, &std::pair<std::string, int>::first);
    if (at == counts.end())
      counts.emplace_back(value, run.count);
    else
      at->second += run.count;
  }
  if (counts.size() == 1) return counts.front().first;
  std::string text;
  for (const auto& [value, count] : counts)
    text += fmt::format("{}{} ({} layer{})", text.empty() ? "" : ", ", value, count,
                        count == 1 ? "" : "s");
  return text;
}

namespace {

constexpr auto kBubble = as_index(sim::TimePart::kBubble);

std::string layers_by_stage(const plan::Plan& plan) {
  std::string text;
  for (const plan::Stage& stage : plan.stages)
    text += fmt::format("{}{}", text.empty() ? "" : "+", stage.layers());
  return text;
}

std::string shard_text(const plan::LayerStrategy& s) {
  return s.shard == 0 ? "the data group" : fmt::format("{} ranks", s.shard);
}
std::string context_text(const plan::LayerStrategy& s) {
  return s.cp == 1 ? "1" : fmt::format("{} {}", s.cp, plan::to_string(s.context));
}

double balance_degree(const std::vector<std::int64_t>& stages) {
  const auto sum = real(std::accumulate(stages.begin(), stages.end(), INT64_C(0)));
  if (sum == 0) return 1 - 1 / real(stages.size());
  return 1 - real(std::ranges::max(stages)) / sum;
}

}  // namespace

std::string tp_of(const plan::LayerStrategy& s) { return std::to_string(s.tp); }
std::string zero_of(const plan::LayerStrategy& s) { return std::to_string(s.zero); }
std::string recompute_of(const plan::LayerStrategy& s) {
  return std::string(plan::to_string(s.recompute));
}
std::string reduction_of(const plan::LayerStrategy& s) {
  constexpr base::EnumNames<plan::GradReduce::kEnd> kWhen("once a step", "every micro-batch",
                                                          "behind the last backward");
  return std::string(kWhen[s.grad_reduce]);
}

std::string states_of(const plan::LayerStrategy& s) {
  return fmt::format("on the {}", plan::to_string(s.states));
}

int SimulatedPlan::critical_stage() const {
  ORRERY_CHECK(!report.stages.empty(), "a report without stages");
  const auto least = std::ranges::min_element(
      report.stages, {}, [](const sim::StageReport& s) { return s.parts[kBubble]; });
  return as_int(least - report.stages.begin());
}

const Parts& SimulatedPlan::parts() const {
  return report.stages[as_index(critical_stage())].parts;
}

int SimulatedPlan::fullest_stage() const {
  const auto most =
      std::ranges::max_element(report.stages, {}, &sim::StageReport::peak_memory_bytes);
  return as_int(most - report.stages.begin());
}

std::int64_t SimulatedPlan::peak_bytes() const {
  return report.stages[as_index(fullest_stage())].peak_memory_bytes;
}

Balance balance_of(const sim::SimReport& report) {
  std::vector<std::int64_t> work_ps, peak_bytes;
  for (const sim::StageReport& s : report.stages) {
    work_ps.push_back(report.step_time_ps - s.parts[kBubble]);
    peak_bytes.push_back(s.peak_memory_bytes);
  }
  return {balance_degree(work_ps), balance_degree(peak_bytes)};
}

base::Result<SimulatedPlan> simulate_plan(const costmodel::CostModel& cost,
                                          const plan::Plan& plan) {
  TRY(const plan::Program program, plan::lower(plan, cost.model()));
  TRY(sim::SimReport report, sim::simulate(program, cost));
  return SimulatedPlan{plan, std::move(report)};
}

Parts difference(const SimulatedPlan& from, const SimulatedPlan& to) {
  Parts parts = to.parts();
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] -= from.parts()[i];
  return parts;
}

Comparison compared(const SimulatedPlan& first, SimulatedPlan other) {
  Comparison c{std::move(other), {}, {}};
  c.difference = difference(first, c.simulated);
  c.changes = changes(first.plan, c.simulated.plan);
  return c;
}

std::vector<std::string> changes(const plan::Plan& from, const plan::Plan& to) {
  using plan::Plan;
  using S = plan::LayerStrategy;
  std::vector<std::string> lines;
  const auto compare = [&](std::string_view what, auto&& aspect) {
    const std::string a(aspect(from)), b(aspect(to));
    if (a != b) lines.push_back(fmt::format("{} {} → {}", what, a, b));
  };
  const auto layers = [&](std::string_view what, const Aspect& aspect) {
    compare(what, [&](const Plan& p) { return over_layers(p, aspect); });
  };
  compare("pipeline ranks", [](const Plan& p) { return std::to_string(p.pipeline_degree()); });
  compare("virtual stages", [](const Plan& p) { return std::to_string(p.virtual_stages); });
  compare("micro-batches", [](const Plan& p) { return std::to_string(p.micro_batches); });
  compare("schedule", [](const Plan& p) { return plan::to_string(p.schedule); });
  layers("tp", tp_of);
  layers("cp", context_text);
  layers("dp", [](const S& s) { return std::to_string(s.dp); });
  layers("ep", [](const S& s) { return std::to_string(s.ep); });
  layers("zero", zero_of);
  layers("states sharded over", shard_text);
  layers("sharded operators", [](const S& s) { return std::string(plan::to_string(s.operators)); });
  layers("slices", [](const S& s) { return std::to_string(s.slices); });
  layers("sequence parallelism", [](const S& s) { return s.sequence_parallel ? "on" : "off"; });
  layers("pieces of tensor collectives",
         [](const S& s) { return std::to_string(s.tensor_pieces); });
  layers("recomputation", recompute_of);
  layers("gradients reduced", reduction_of);
  layers("optimizer states", states_of);
  layers("strided groups", [](const S& s) { return s.strided ? "yes" : "no"; });
  if (from.stages.size() == to.stages.size()) compare("layers by stage", layers_by_stage);
  compare("embedding and head", [](const Plan& p) { return plan::to_string(p.vocabulary); });
  return lines;
}

}  // namespace orrery::search
