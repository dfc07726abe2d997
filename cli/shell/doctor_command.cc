#include <algorithm>

#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/shell/doctor.h"
#include "cli/text/show.h"

namespace orrery::cli {
namespace {

Result<int> run(const Options& options, const Invocation&) {
  const std::vector<Finding> findings = examine(places_of_this_process());
  const auto problems = std::ranges::count(findings, Health::kProblem, &Finding::health);
  if (options.flag("json")) {
    print_json({{"schema", "orrery.doctor/1"},
                {"version", version()},
                {"well", problems == 0},
                {"findings", json_list(findings, [](const Finding& f) -> Json {
                   return {{"subject", f.subject},
                           {"health", to_string(f.health)},
                           {"found", f.found},
                           {"advice", f.advice}};
                 })}});
    return problems == 0 ? 0 : 3;
  }
  for (const Finding& f : findings) {
    fmt::print("{:<8} {:<17} {}\n", to_string(f.health), f.subject, f.found);
    if (!f.advice.empty()) fmt::print("{:<27}{}\n", "", f.advice);
  }
  fmt::print("{}\n", problems == 0
                         ? "nothing is wrong"
                         : fmt::format("{} problem{}", problems, problems == 1 ? "" : "s"));
  return problems == 0 ? 0 : 3;
}

}  // namespace

Command doctor_command() {
  return {
      {.name = "doctor",
       .summary = "say what this machine has of what Orrery uses, and what to do about the rest",
       .examples = {{"orrery doctor", "a line each: ok, missing or problem"},
                    {"orrery doctor --json", "for a script; exit code 3 when there is a problem"}},
       .options = {json_option()}},
      run,
      false,
      true};
}

}  // namespace orrery::cli
