#include "sim/run/run_report.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <string_view>

#include "base/json.h"
#include "base/text.h"

namespace orrery::sim {
namespace {

constexpr double kDay = 86'400;

/// "15 T", "2.79 M", "640": three digits.
std::string short_scale(double value) {
  struct Scale {
    double at_least;
    std::string_view letter;
  };
  for (const Scale s : {Scale{1e12, "T"}, Scale{1e9, "B"}, Scale{1e6, "M"}, Scale{1e3, "K"}}) {
    if (value >= s.at_least * 0.9995) return fmt::format("{:.4g}{}", value / s.at_least, s.letter);
  }
  return fmt::format("{:.4g}", value);
}

std::string money(double dollars) { return short_scale(dollars) + "$"; }

std::string days(double seconds) {
  return seconds >= kDay ? fmt::format("{} days", base::grouped(seconds / kDay))
                         : base::to_string(base::Seconds(seconds));
}

/// "met", or by how much it is missed.
std::string verdict_text(bool met, double over, const std::string& by) {
  return met ? "met" : fmt::format("missed by {} ({:+.1f} %)", by, 100 * over);
}

void put(base::Json& json, const char* key, const auto& value) {
  if (value) json[key] = *value;
}

}  // namespace

base::Result<RunReport> run_report(const RunRequest& request, const RunLimits& limits) {
  TRY(RunCost cost, run_cost(request));
  return RunReport{request, limits, cost, verdict_of(cost, limits)};
}

base::Json to_json(const RunReport& run) {
  base::Json json{{"tokens", run.request.tokens},          {"devices", run.request.devices},
                  {"days", run.cost.wall.raw() / kDay},    {"goodput", run.cost.goodput},
                  {"device_hours", run.cost.device_hours}, {"pue", run.request.pue}};
  put(json, "dollars_per_device_hour", run.request.dollars_per_device_hour);
  if (run.request.failures && run.request.failures->repair.raw() > 0)
    json["waiting"] = run.cost.waiting;
  put(json, "dollars", run.cost.dollars);
  put(json, "mwh", run.cost.mwh);
  put(json, "kg_co2", run.cost.kg_co2);
  if (run.limits.deadline) json["deadline_days"] = run.limits.deadline->raw() / kDay;
  put(json, "deadline_met", run.verdict.deadline);
  put(json, "budget_dollars", run.limits.budget_dollars);
  put(json, "budget_met", run.verdict.budget);
  return json;
}

std::string to_text(const RunReport& run) {
  std::string text;
  auto out = std::back_inserter(text);
  const RunCost& cost = run.cost;
  fmt::format_to(out, "run          {} tokens: {}, {} GPU-hours on {} GPUs",
                 short_scale(run.request.tokens), days(cost.wall.raw()),
                 base::grouped(cost.device_hours), base::grouped(run.request.devices));
  if (run.request.failures) fmt::format_to(out, ", goodput {:.1f} %", 100 * cost.goodput);
  if (run.request.failures && run.request.failures->repair.raw() > 0)
    fmt::format_to(out, " ({:.1f} % waiting for hosts under repair)", 100 * cost.waiting);
  text += '\n';
  if (cost.dollars) {
    fmt::format_to(out, "cost         {} at {:g}$ a GPU-hour\n", money(*cost.dollars),
                   *run.request.dollars_per_device_hour);
  }
  if (cost.mwh) {
    fmt::format_to(out, "run energy   {} MWh (PUE {:g})", base::grouped(*cost.mwh),
                   run.request.pue);
    if (cost.kg_co2)
      fmt::format_to(out, ", {} t CO2 at {:g} g/kWh", base::grouped(*cost.kg_co2 / 1000),
                     *run.request.carbon_g_per_kwh);
    text += '\n';
  }
  if (run.verdict.deadline) {
    const double over = cost.wall.raw() - run.limits.deadline->raw();
    fmt::format_to(
        out, "deadline     {}: {}\n", days(run.limits.deadline->raw()),
        verdict_text(*run.verdict.deadline, over / run.limits.deadline->raw(), days(over)));
  }
  if (run.verdict.budget) {
    const double over = *cost.dollars - *run.limits.budget_dollars;
    fmt::format_to(
        out, "budget       {}: {}\n", money(*run.limits.budget_dollars),
        verdict_text(*run.verdict.budget, over / *run.limits.budget_dollars, money(over)));
  }
  return text;
}

}  // namespace orrery::sim
