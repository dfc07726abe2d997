#include "cli/run_options.h"

#include "base/json.h"
#include "base/numbers.h"
#include "costmodel/energy/power.h"

namespace orrery::cli {

using base::OptionSpec;
using base::OptionType;

namespace {

OptionSpec quantity_option(const char* name, const char* value_name, OptionType type,
                           base::DoubleRange range, const char* help) {
  OptionSpec o = text_option(name, value_name, help);
  o.type = type;
  o.min = range.min;
  o.max = range.max;
  return o;
}

}  // namespace

std::vector<OptionSpec> failure_options(const char* mtbf_help) {
  return {
      duration_option("mtbf", {1, 1e12}, mtbf_help),
      duration_option("checkpoint-time", {1e-3, 1e6},
                      "training stands still for a checkpoint (with --mtbf)", "60s"),
      duration_option("restart-time", {0, 1e6}, "from a failure to the first step again", "300s"),
      duration_option("checkpoint-interval", {1e-3, 1e9},
                      "work between checkpoints (default: the best)"),
      duration_option("repair-time", {0, 1e9},
                      "a failed host is out for so long (default: another is always at hand)"),
      integer_option("spares", "N", {0, sim::kMostSpares},
                     "hosts that stand by for those under repair, paid for as well", "0")};
}

std::optional<sim::DeviceFailures> failures_of(const base::Options& o) {
  if (!o.has("mtbf")) return std::nullopt;
  sim::DeviceFailures f{o.duration("mtbf"), o.duration("checkpoint-time"),
                        o.duration("restart-time")};
  if (o.has("checkpoint-interval")) f.interval = o.duration("checkpoint-interval");
  if (o.has("repair-time")) f.repair = o.duration("repair-time");
  f.spares = o.count("spares");
  return f;
}

std::vector<OptionSpec> run_options() {
  return {
      flag_option("energy", "add the step's energy and power (docs/models/energy.md)"),
      quantity_option("tokens", "N", OptionType::kCount, {1, 1e18},
                      "a run of so many tokens, as 15T or 300B: days, GPU-hours, energy"),
      quantity_option("price-per-gpu-hour", "N$", OptionType::kDollars, {0, 1e6},
                      "what a device costs, as 2.1$: adds the money of the run"),
      quantity_option("pue", "X", OptionType::kDouble, {1, 10},
                      "power of the site over that of its computers (default: 1)"),
      quantity_option("carbon", "G", OptionType::kDouble, {0, 1e4},
                      "grams of CO2 per kWh of the grid: adds the run's"),
      duration_option("deadline", {1, 1e12}, "of the run, as 60d: exit code 2 where it is missed"),
      quantity_option("budget", "N$", OptionType::kDollars, {0, 1e15},
                      "of the run, as 5M$: exit code 2 where it is exceeded")};
}

Result<void> check_company(const base::Options& o, std::initializer_list<Company> rows) {
  for (const Company& c : rows) {
    if (!o.given(c.option) || o.has(c.needs) || (c.or_needs && o.given(c.or_needs))) continue;
    return base::fail(kUsage, "--{} says something about --{}{}, which is missing", c.option,
                      c.needs, c.or_needs ? fmt::format(" or --{}", c.or_needs) : "");
  }
  return {};
}

Result<void> check_run_options(const base::Options& o) {
  return check_company(o, {{"checkpoint-time", "mtbf"},
                           {"restart-time", "mtbf"},
                           {"checkpoint-interval", "mtbf"},
                           {"repair-time", "mtbf"},
                           {"spares", "repair-time"},
                           {"price-per-gpu-hour", "tokens"},
                           {"pue", "tokens", "energy"},
                           {"carbon", "tokens"},
                           {"deadline", "tokens"},
                           {"budget", "price-per-gpu-hour"}});
}

Result<bool> wants_energy(const base::Options& o, const Topology& topology, bool minimised) {
  const bool compulsory = minimised || o.flag("energy") || o.has("pue") || o.has("carbon");
  if (!compulsory && !o.has("tokens")) return false;
  const auto power = costmodel::MachinePower::of(topology);
  if (power) return true;
  if (compulsory) return base::fail(power.error());
  return false;
}

Result<sim::RunReport> run_of(const base::Options& o, const Topology& topology, int ranks,
                              double tokens_per_s,
                              const std::optional<sim::DeviceFailures>& failures,
                              const std::optional<sim::RunPower>& power) {
  sim::RunRequest r;
  const int host = as_int(topology.devices_per_host());
  r.tokens = o.large_count("tokens").raw();
  r.tokens_per_s = tokens_per_s;
  r.devices = ceil_div(ranks, host) * host;
  if (failures) {
    r.failures = failures->of_job(real(ranks));
    r.interval = failures->interval;
    r.devices += real(failures->spares * host);
  }
  if (o.has("price-per-gpu-hour"))
    r.dollars_per_device_hour = o.dollars("price-per-gpu-hour").raw();
  r.power = power;
  if (o.has("pue")) r.pue = o.real("pue");
  if (o.has("carbon")) r.carbon_g_per_kwh = o.real("carbon");
  sim::RunLimits limits;
  if (o.has("deadline")) limits.deadline = o.duration("deadline");
  if (o.has("budget")) limits.budget_dollars = o.dollars("budget").raw();
  return sim::run_report(r, limits);
}

void EnergyAndRun::add_to(base::Json& document) const {
  if (energy) document["energy"] = sim::to_json(*energy);
  if (run) document["run"] = sim::to_json(*run);
}

std::string EnergyAndRun::text() const {
  return (energy ? sim::to_text(*energy) : "") + (run ? sim::to_text(*run) : "");
}

Result<EnergyAndRun> energy_and_run(const base::Options& o, const sim::SimReport& report,
                                    const Topology& topology,
                                    const std::optional<sim::DeviceFailures>& failures) {
  EnergyAndRun out{.energy = report.energy, .run = {}};
  if (out.energy && o.has("pue")) out.energy->pue = o.real("pue");
  if (!o.has("tokens") || report.step_time_ps <= 0) return out;
  std::optional<sim::RunPower> power;
  if (report.energy)
    power = {base::Watts(report.energy->cluster.mean), base::Watts(report.energy->waiting_watts)};
  TRY(out.run, run_of(o, topology, as_int(report.ranks), report.tokens_per_s, failures, power));
  return out;
}

}  // namespace orrery::cli
