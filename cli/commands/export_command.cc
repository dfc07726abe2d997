#include <algorithm>

#include "base/file.h"
#include "base/numbers.h"
#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/text/show.h"
#include "costmodel/memory_limit.h"
#include "plan/export/export.h"
#include "plan/lowering/lower.h"

namespace orrery::cli {

namespace {

using plan::ExportedPlan;
using plan::FrameworkTerms;

std::vector<std::string> framework_names() {
  std::vector<std::string> names;
  for (const FrameworkTerms& terms : plan::frameworks()) names.emplace_back(terms.name);
  return names;
}

/// @pre one of framework_names()
const FrameworkTerms& framework_of(const Options& options) {
  return *std::ranges::find(plan::frameworks(), options.string("to"), &FrameworkTerms::name);
}

/// What a plan costs here.
struct Cost {
  std::int64_t step_ps = 0, peak_bytes = 0;
};
Result<Cost> simulated(const Plan& plan, const Scene& scene) {
  TRY(const plan::Program program, plan::lower(plan, scene.model));
  TRY(const sim::SimReport report, sim::simulate(program, scene.cost));
  return Cost{report.step_time_ps, fullest_stage(plan, report, scene.cost, 0).peak_bytes};
}

struct Costs {
  Cost planned, runs;
  std::int64_t limit_bytes = 0;
  [[nodiscard]] bool fits() const { return runs.peak_bytes <= limit_bytes; }
};

Json to_json(const Cost& cost) {
  return {{"step_time_ps", cost.step_ps}, {"peak_memory_bytes", cost.peak_bytes}};
}

Json to_json(const FrameworkTerms& terms, const ExportedPlan& exported, const Costs& costs,
             const CostModel& cost) {
  const auto difference = [](const plan::Difference& d) {
    return Json{{"field", d.field},
                {"where", d.where},
                {"planned", d.planned},
                {"runs", d.runs},
                {"why", d.why}};
  };
  const auto setting = [](const plan::Setting& s) {
    return Json{{"name", s.name}, {"value", s.value}, {"where", s.where}};
  };
  return {{"schema", "orrery.export/1"},
          {"framework", terms.name},
          {"version", terms.version},
          {"exact", exported.exact()},
          {"differences", json_list(exported.differences, difference)},
          {"settings", json_list(exported.settings, setting)},
          {"notes", exported.notes},
          {"text", exported.text},
          {"plan", plan::to_json(exported.plan)},
          {"planned", to_json(costs.planned)},
          {"runs", to_json(costs.runs)},
          {"memory_limit_bytes", costs.limit_bytes},
          {"origin", origin_json(cost)}};
}

/// "+5.7 %"
std::string change(std::int64_t before, std::int64_t after) {
  return fmt::format("{:+.1f} %", 100 * (real(after) - real(before)) / real(before));
}

std::string describe(const FrameworkTerms& terms, const ExportedPlan& exported, const Costs& costs,
                     const CostModel& cost) {
  const auto& [planned, runs, limit] = costs;
  std::string text;
  if (exported.exact()) {
    text = fmt::format("{} {} runs this plan as it is: exact\nstep time: {}\nmemory: {} of {}\n",
                       terms.title, terms.version, show_time(runs.step_ps),
                       show_bytes(runs.peak_bytes), show_bytes(limit));
  } else {
    text = fmt::format("{} {} runs another plan:\n", terms.title, terms.version);
    for (const plan::Difference& d : exported.differences)
      text += fmt::format("  {}{}{}: {} becomes {} ({})\n", d.field, d.where.empty() ? "" : " of ",
                          d.where, d.planned, d.runs, d.why);
    text += fmt::format(
        "{}\nstep time: {}, planned {} ({})\nmemory: {} of {}, planned {} ({})\n",
        cli::describe(exported.plan), show_time(runs.step_ps), show_time(planned.step_ps),
        change(planned.step_ps, runs.step_ps), show_bytes(runs.peak_bytes), show_bytes(limit),
        show_bytes(planned.peak_bytes), change(planned.peak_bytes, runs.peak_bytes));
  }
  text += fmt::format("prices: {}\n", describe_origin(cost));
  if (!exported.exact() && !terms.target.empty())
    text += fmt::format("what it runs best: orrery plan --target {}\n", terms.target);
  if (!exported.settings.empty()) text += "stated elsewhere than in the file:\n";
  for (const plan::Setting& s : exported.settings)
    text += fmt::format("  {} {} ({})\n", s.name, s.value, s.where);
  for (const std::string& note : exported.notes) text += fmt::format("note: {}\n", note);
  return text;
}

Result<Costs> costs_of(const Options& options, const FrameworkTerms& terms, const Plan& planned,
                       const ExportedPlan& exported, const Scene& scene) {
  Costs costs;
  TRY(costs.planned, simulated(planned, scene));
  costs.runs = costs.planned;
  if (!exported.exact() && exported.plan.precision == planned.precision) {
    TRY(costs.runs, simulated(exported.plan, scene));
  } else if (!exported.exact()) {
    TRY(const Scene other, scene_of(options, exported.plan, terms.software));
    TRY(costs.runs, simulated(exported.plan, other));
  }
  costs.limit_bytes = costmodel::MemoryLimit(scene.cost, memory_of(options)).least();
  return costs;
}

Result<int> run(const Options& options, const Invocation&) {
  const FrameworkTerms& terms = framework_of(options);
  TRY(const Plan plan, plan::load_plan(options.string("plan")));
  TRY(const Scene scene, scene_of(options, plan, terms.software));
  TRY_VOID(check_ranks(plan, scene.cost.topology()));
  TRY(const ExportedPlan exported,
      plan::export_plan(terms.framework, plan,
                        {.model = scene.model,
                         .devices_per_host = as_int(scene.cost.topology().devices_per_host())}));
  TRY(const Costs costs, costs_of(options, terms, plan, exported, scene));
  const bool to_file = options.has("out");
  if (to_file) TRY_VOID(base::write_file_atomic(options.string("out"), exported.text));
  const std::string report = describe(terms, exported, costs, scene.cost);
  if (options.flag("json")) {
    print_json(to_json(terms, exported, costs, scene.cost));
  } else if (to_file) {
    fmt::print("{}", report);
  } else {
    fmt::print("{}", exported.text);
    say("{}", report);
  }
  if (to_file) say("{} written to {}\n", terms.file, options.string("out"));
  if (costs.fits()) return 0;
  say("does not fit: needs {} per device, {} more than the limit of {}\n",
      show_bytes(costs.runs.peak_bytes), show_bytes(costs.runs.peak_bytes - costs.limit_bytes),
      show_bytes(costs.limit_bytes));
  return 2;
}

}  // namespace

Command export_command() {
  return {
      {.name = "export",
       .summary = "write a plan as the file of another framework, and what that loses",
       .examples = {{"orrery export --plan plan.json --to megatron --out plan.sh",
                     "arguments to source in a launch script"},
                    {"orrery export --plan plan.json --to torchtitan --json",
                     "the job configuration, what it loses, and both costs"}},
       .options = joined(
           {{required(text_option("plan", "FILE", "plan (orrery.plan/1)")),
             required(choice_option("to", "FRAMEWORK", framework_names(), "whose file is written")),
             text_option("out", "FILE",
                         "write the file here (default: stdout, and the report "
                         "to stderr)"),
             model_option(false), cluster_option(false), hosts_option(), memory_option()},
            price_options(),
            {json_option()}})},
      run};
}

}  // namespace orrery::cli
