#include <optional>

#include "base/numbers.h"
#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/text/show.h"
#include "search/proof/certificate_check.h"
#include "search/table/instance_program.h"

namespace orrery::cli {

namespace {

/// Neighbouring layers with the option of one name are one row.
void print_choices(const search::Instance& instance, const search::Solution& solution) {
  const auto option = [&](std::size_t i) -> const search::InstanceOption& {
    return instance.layers[i][as_index(solution.choices[i])];
  };
  fmt::print("{:<12} {:<28} {:>12} {:>12}\n", "layers", "option", "time", "memory");
  for (std::size_t first = 0; first < instance.layers.size();) {
    std::size_t end = first;
    std::int64_t time = 0, memory = 0;
    for (; end < instance.layers.size() && option(end).name == option(first).name; ++end) {
      time += option(end).time_ps;
      memory += option(end).memory_bytes;
    }
    fmt::print("{:<12} {:<28} {:>12} {:>12}\n",
               end - first == 1 ? fmt::format("{}", first) : fmt::format("{}-{}", first, end - 1),
               option(first).name, show_time(time), show_bytes(memory));
    first = end;
  }
}

void print_solution(const search::Instance& instance, const search::Solution& s,
                    std::optional<double> seconds) {
  print_choices(instance, s);
  std::int64_t moves = 0;
  for (std::size_t i = 1; i < s.choices.size(); ++i)
    moves += instance.transition(i - 1, as_index(s.choices[i - 1]), as_index(s.choices[i]));
  fmt::print("\ntime {} ({} ps), of which transitions {}; memory {} of {} ({} bytes free)\n",
             show_time(s.time_ps), s.time_ps, show_time(moves), show_bytes(s.memory_bytes),
             show_bytes(instance.budget_bytes), instance.budget_bytes - s.memory_bytes);
  fmt::print(
      "search: {}{}: {} states; at a memory price of {}/{} ps per byte nothing is below "
      "{} ps, gap {:.4f} %\n",
      search::to_string(s.status), describe_seconds(seconds), s.states, s.multiplier.numerator,
      s.multiplier.denominator, s.bound_ps, 100 * s.gap);
}

Result<int> run(const Options& options, const Invocation&) {
  TRY(const search::Instance instance, search::load_instance(options.string("FILE")));
  const Stopwatch watch;
  const search::Solution solution =
      search::solve_instance(instance, static_cast<std::uint64_t>(options.integer("max-states")));
  std::optional<double> seconds;
  if (options.flag("timing")) seconds = watch.seconds();
  const bool infeasible = solution.status == search::Status::kInfeasible;
  Json json = search::to_json(solution, instance);
  if (seconds) json["seconds"] = *seconds;
  bool holds = true;
  if (options.flag("check")) {
    const search::CheckReport report = search::check_solution(instance, solution);
    holds = report.holds();
    json["check"] = to_json(report);
    for (const std::string& fault : report.faults) say("check: {}\n", fault);
  }
  if (options.flag("json"))
    print_json(json);
  else if (!infeasible)
    print_solution(instance, solution, seconds);
  if (options.flag("check") && holds && !options.flag("json"))
    fmt::print("check: cost, memory and bound recomputed, the answer holds\n");
  if (infeasible)
    say("no choice fits {} ({} bytes): the least takes {} bytes, {} more\n",
        show_bytes(instance.budget_bytes), instance.budget_bytes, solution.least_memory_bytes,
        solution.least_memory_bytes - instance.budget_bytes);
  if (!holds)
    return base::fail(kMismatch, "the checker refuses the answer; please report this instance");
  return infeasible ? 2 : 0;
}

}  // namespace

Command solve_command() {
  return {
      {.name = "solve",
       .summary = "the layer program on your own cost table: fastest options within a memory "
                  "budget, exact",
       .examples = {{"orrery solve instance.json", "options of every layer, with a certificate"},
                    {"orrery solve instance.json --check --json",
                     "recompute the certificate; for a script"}},
       .positionals = {{.name = "FILE", .help = "cost table (orrery.instance/1)"}},
       .options = {integer_option("max-states", "N", {0, 1'000'000'000},
                                  "stop after so many states, with a certified gap (0: never)",
                                  "20000000"),
                   flag_option("check",
                               "recompute cost, memory and bound by the independent checker"),
                   timing_option(), json_option()}},
      run};
}

}  // namespace orrery::cli
