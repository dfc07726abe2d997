#include <algorithm>
#include <cstdio>
#include <deque>

#include <fmt/format.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/command.h"
#include "cli/commands/simulate_table.h"
#include "cli/html/html_report.h"
#include "cli/inputs.h"
#include "cli/text/show.h"
#include "model/names.h"
#include "plan/check/check.h"
#include "plan/lowering/lower.h"
#include "sim/scenario/goodput.h"
#include "sim/scenario/scenario_run.h"
#include "sim/simulate.h"

namespace orrery::cli {

using base::OptionType;

namespace {

base::OptionSpec degree(const char* name, const char* help, const char* default_value = "1") {
  return integer_option(name, "N", {1, 1 << 20}, help, default_value);
}

/// What is simulated: a plan of a file, or a model on a cluster.
std::vector<base::OptionSpec> subject_options() {
  return {{.name = "plan",
           .value_name = "FILE",
           .help = "plan (orrery.plan/1); the degrees below are for plans without a file"},
          model_option(false),
          cluster_option(false),
          hosts_option()};
}

/// The strategy of every layer, for plans without a file.
std::vector<base::OptionSpec> strategy_options() {
  return {degree("tp", "tensor-parallel degree"),
          degree("pp", "pipeline stages"),
          degree("dp", "data-parallel degree (default: what the cluster has left)", ""),
          degree("cp", "context-parallel degree"),
          degree("ep", "expert-parallel degree: experts split over ep of the dp ranks"),
          integer_option("zero", "0..3", {0, 3}, "sharded data parallelism", "0"),
          degree("micro-batch", "sequences per micro-batch and data-parallel rank"),
          global_batch_option(),
          {.name = "schedule",
           .value_name = "S",
           .default_value = "1f1b",
           .choices = {"1f1b", "gpipe", "interleaved", "zb-h1"},
           .help = "pipeline schedule"},
          degree("virtual-stages", "stages per pipeline rank, of the interleaved schedule"),
          {.name = "recompute",
           .value_name = "R",
           .default_value = "none",
           .choices = {"none", "selective", "full"},
           .help = "activations computed again in the backward pass"},
          {.name = "sequence-parallel",
           .type = OptionType::kFlag,
           .help = "split norms and residuals along the sequence over tp"}};
}

std::vector<base::OptionSpec> setting_options() {
  return {sequence_option(),
          precision_option(),
          memory_option(),
          profile_option(),
          {.name = "trace",
           .value_name = "FILE",
           .help = "write the predicted timeline (orrery.trace/1)"},
          json_option()};
}

std::vector<base::OptionSpec> scenario_options() {
  return {{.name = "scenario",
           .value_name = "FILE",
           .help = "slow or failed links, slow devices, jitter, traffic and jobs of "
                   "others, failures (orrery.scenario/1): what they cost"},
          integer_option("monte-carlo", "N", {1, 1'000'000},
                         "run the scenario's jitter with N seeds: percentiles of the step time")};
}

/// Failures and checkpoints; the seed is of jitter too.
std::vector<base::OptionSpec> goodput_options() {
  return {{.name = "mtbf",
           .value_name = "TIME",
           .type = OptionType::kDuration,
           .min = 1,
           .max = 1e12,
           .help = "mean time between failures of one device: adds goodput under failures"},
          {.name = "checkpoint-time",
           .value_name = "TIME",
           .type = OptionType::kDuration,
           .default_value = "60s",
           .min = 1e-3,
           .max = 1e6,
           .help = "training stands still for a checkpoint (with --mtbf)"},
          {.name = "restart-time",
           .value_name = "TIME",
           .type = OptionType::kDuration,
           .default_value = "300s",
           .min = 0,
           .max = 1e6,
           .help = "from a failure to the first step again"},
          {.name = "checkpoint-interval",
           .value_name = "TIME",
           .type = OptionType::kDuration,
           .min = 1e-3,
           .max = 1e9,
           .help = "work between checkpoints (default: the best)"},
          integer_option("seed", "N", {0, 1 << 30},
                         "of jitter and simulated failures (default: the scenario's)", "1")};
}

std::vector<base::OptionSpec> output_options() {
  return {{.name = "html",
           .value_name = "FILE",
           .help = "write a page to look at: timeline, memory, links (opens from disk)"},
          {.name = "table",
           .value_name = "ROWS.csv",
           .help = "evaluate one plan a row; options above are for empty cells"},
          {.name = "bands",
           .type = OptionType::kFlag,
           .help = "with --table: add the 80 % band of each row"},
          {.name = "out",
           .value_name = "RESULTS.csv",
           .help = "where the results of --table go (default: stdout)"},
          threads_option("rows of --table, runs of --monte-carlo in parallel")};
}

}  // namespace

const base::CommandSpec& simulate_spec() {
  static const base::CommandSpec kSpec{
      .name = "simulate",
      .summary = "predict one plan: step time, memory, where the time goes",
      .examples = {{"orrery simulate --plan plan.json --trace step.json",
                    "a plan that 'orrery plan' wrote, with a timeline for Perfetto"},
                   {"orrery simulate --model llama-3-8b --cluster dgx-h100 --tp 2 --dp 4 --zero 1 "
                    "--micro-batch 1 --global-batch 64",
                    "one strategy for every layer"},
                   {"orrery simulate --plan plan.json --scenario bad-host.yaml --monte-carlo 100",
                    "what slow or failed parts cost (docs/models/scenario.md)"},
                   {"orrery simulate --table rows.csv --out results.csv",
                    "one plan a row: columns tp, pp, layers, hidden, ... (docs/schemas.md)"}},
      .options = joined({subject_options(), strategy_options(), setting_options(),
                         scenario_options(), goodput_options(), output_options()})};
  return kSpec;
}

namespace {

/// The enumerator up to `last` of this name. @pre there is one.
template <class E>
E named(std::string_view name, E last) {
  const auto rows = model::names_up_to(last);
  return std::ranges::find(rows, name, &base::Named<E>::name)->value;
}

/// Everything but the sequence length, dp and the precision, which have defaults of their own.
plan::UniformOptions strategy_of(const base::Options& o) {
  plan::UniformOptions u;
  u.tp = o.count("tp");
  u.pp = o.count("pp");
  u.cp = o.count("cp");
  u.ep = o.count("ep");
  u.zero = o.count("zero");
  u.sequence_parallel = o.flag("sequence-parallel");
  u.recompute = named(o.string("recompute"), plan::Recompute::kFull);
  u.schedule = named(o.string("schedule"), plan::Schedule::kZeroBubbleH1);
  u.virtual_stages = o.count("virtual-stages");
  u.uneven_stages = true;
  u.micro_batch = o.integer("micro-batch");
  u.global_batch = o.integer("global-batch");
  return u;
}

base::Result<plan::Plan> plan_from_flags(const base::Options& o, const model::ModelSpec& model,
                                         const topologies::Topology& cluster) {
  plan::UniformOptions u = strategy_of(o);
  u.sequence = o.has("sequence-length") ? o.integer("sequence-length") : model.max_positions;
  TRY(u.precision, precision_of(o));
  const int devices = static_cast<int>(cluster.device_count()), used = u.tp * u.pp * u.cp;
  if (!o.has("dp") && devices % used != 0) {
    return base::fail(
        base::make_error(base::ErrorCode::kInconsistent,
                         "--tp {} × --pp {}{} does not divide the cluster's {} devices", u.tp, u.pp,
                         u.cp > 1 ? fmt::format(" × --cp {}", u.cp) : "", devices)
            .with_hint("name --dp as well, or other degrees"));
  }
  u.dp = o.has("dp") ? o.count("dp") : devices / used;
  return plan::uniform_plan(model, o.string("cluster"), o.count("hosts"), u);
}

base::Result<void> check_ranks(const plan::Plan& plan, const topologies::Topology& cluster) {
  if (plan.world_size() <= static_cast<int>(cluster.device_count())) return {};
  return base::fail(base::make_error(base::ErrorCode::kInconsistent,
                                     "the plan has {} ranks, cluster '{}' has {} devices",
                                     plan.world_size(), cluster.name(), cluster.device_count())
                        .with_hint(fmt::format(
                            "--hosts {} would do",
                            (plan.world_size() + static_cast<int>(cluster.devices_per_host()) - 1) /
                                static_cast<int>(cluster.devices_per_host()))));
}

struct Subject {
  plan::Plan plan;
  Scene scene;
};

base::Result<Subject> subject_of(const base::Options& o) {
  const std::string profile = o.string_or("profile", "");
  if (o.has("plan")) {
    TRY(plan::Plan plan, plan::load_plan(o.string("plan")));
    const int hosts = o.given("hosts") ? o.count("hosts") : plan.hosts;
    TRY(Scene scene,
        make_scene(o.string_or("model", plan.model), o.string_or("cluster", plan.cluster), hosts,
                   profile, plan.precision, plan.sequence, plan.world_size()));
    return Subject{std::move(plan), std::move(scene)};
  }
  for (const char* name : {"model", "cluster"})
    if (!o.has(name)) {
      return base::fail(base::make_error(base::ErrorCode::kUsage, "--{} is missing", name)
                            .with_hint("give --plan FILE, or --model and --cluster with degrees"));
    }
  TRY(const model::Precision precision, precision_of(o));
  const int ranks =
      o.has("dp")
          ? static_cast<int>(o.integer("tp") * o.integer("pp") * o.integer("cp") * o.integer("dp"))
          : 0;
  TRY(Scene scene,
      make_scene(o.string("model"), o.string("cluster"), o.count("hosts"), profile, precision,
                 o.has("sequence-length") ? o.integer("sequence-length") : 0, ranks));
  TRY(plan::Plan plan, plan_from_flags(o, scene.model, scene.cost.topology()));
  return Subject{std::move(plan), std::move(scene)};
}

std::int64_t worst_peak(const sim::SimReport& report) {
  std::int64_t peak = 0;
  for (const sim::StageReport& s : report.stages) peak = std::max(peak, s.peak_memory_bytes);
  return peak;
}

constexpr double kWorkSeconds = 30 * 86'400.0;  // of a simulated run
constexpr int kRuns = 200;

/// Of the scenario, or of --mtbf and what goes with it.
std::optional<sim::DeviceFailures> failures_of(const base::Options& o,
                                               const std::optional<sim::Scenario>& scenario) {
  if (scenario && scenario->failures) return scenario->failures;
  if (!o.has("mtbf")) return std::nullopt;
  sim::DeviceFailures f{
      o.duration("mtbf"), o.duration("checkpoint-time"), o.duration("restart-time"), {}};
  if (o.has("checkpoint-interval")) f.interval = o.duration("checkpoint-interval");
  return f;
}

/// Goodput under failures: by formula, and the spread of simulated runs.
base::Json goodput_of(const sim::DeviceFailures& f, int devices, std::uint64_t seed) {
  const sim::FailureModel m{base::Seconds(f.mtbf.raw() / devices), f.checkpoint, f.restart};
  const base::Seconds interval = f.interval.value_or(sim::best_interval(m));
  const std::vector<double> runs =
      sim::goodput_samples(m, interval, base::Seconds(kWorkSeconds), seed, kRuns);
  return {{"job_mtbf_s", m.job_mtbf.raw()},       {"checkpoint_interval_s", interval.raw()},
          {"goodput", sim::goodput(m, interval)}, {"p10", sim::percentile(runs, 10)},
          {"p50", sim::percentile(runs, 50)},     {"p90", sim::percentile(runs, 90)}};
}

std::string describe_goodput(const base::Json& g) {
  const auto at = [&](const char* key) { return g[key].get<double>(); };
  return fmt::format(
      "goodput      {:.1f} %  (a failure every {}, a checkpoint every {}; {:.1f} to {:.1f} % in 8 "
      "of 10 simulated runs of 30 days of work)\n",
      100 * at("goodput"), base::to_string(base::Seconds(at("job_mtbf_s"))),
      base::to_string(base::Seconds(at("checkpoint_interval_s"))), 100 * at("p10"),
      100 * at("p90"));
}

base::Result<int> run_table(const base::Options& o) {
  for (const char* name : {"plan", "trace", "json", "html", "scenario", "monte-carlo", "mtbf"}) {
    if (!o.given(name)) continue;
    return base::fail(
        base::make_error(base::ErrorCode::kUsage, "--table and --{} do not go together", name)
            .with_hint("a table has one plan a row, and its results are a table"));
  }
  TableRequest request{.rows_file = o.string("table"),
                       .out_file = o.string_or("out", ""),
                       .profile = o.string_or("profile", ""),
                       .bands = o.flag("bands"),
                       .defaults = {}};
  if (o.has("memory"))
    request.memory_limit_bytes = static_cast<std::int64_t>(o.bytes("memory").raw());
  request.threads = o.count("threads");
  TableDefaults& d = request.defaults;
  if (o.has("model")) {
    TRY(d.model, model::find_model(o.string("model")));
  }
  if (o.has("cluster")) d.cluster = o.string("cluster");
  if (o.given("hosts")) d.hosts = o.integer("hosts");
  d.plan = strategy_of(o);
  d.plan.dp = o.has("dp") ? o.count("dp") : 0;
  d.plan.sequence = o.has("sequence-length") ? o.integer("sequence-length") : 0;
  TRY(d.plan.precision, precision_of(o));
  return simulate_table(request);
}

/// What would be read and have no effect.
base::Result<void> check_company(const base::Options& o) {
  struct Company {
    const char *option, *needs, *or_needs;
  };
  for (const Company c :
       {Company{"monte-carlo", "scenario", nullptr}, Company{"checkpoint-time", "mtbf", nullptr},
        Company{"restart-time", "mtbf", nullptr}, Company{"checkpoint-interval", "mtbf", nullptr},
        Company{"bands", "table", nullptr}, Company{"seed", "scenario", "mtbf"}}) {
    if (!o.given(c.option) || o.has(c.needs) || (c.or_needs && o.has(c.or_needs))) continue;
    return base::fail(base::ErrorCode::kUsage, "--{} says something about --{}{}, which is missing",
                      c.option, c.needs, c.or_needs ? fmt::format(" or --{}", c.or_needs) : "");
  }
  return {};
}

base::Result<std::optional<sim::Scenario>> scenario_of(const base::Options& o,
                                                       const topologies::Topology& cluster) {
  if (!o.has("scenario")) return std::optional<sim::Scenario>();
  TRY(sim::Scenario scenario, sim::load_scenario(o.string("scenario"), cluster));
  if (scenario.failures && o.has("mtbf")) {
    return base::fail(
        base::make_error(base::ErrorCode::kUsage,
                         "--mtbf and the failures of scenario '{}' do not go together",
                         scenario.name)
            .with_hint("leave one of them out"));
  }
  if (o.given("seed")) scenario.jitter.seed = static_cast<std::uint64_t>(o.integer("seed"));
  return std::optional(std::move(scenario));
}

/// The jobs of a scenario on the cluster of the plan; those that run the plan itself share its
/// Program.
struct Jobs {
  std::deque<plan::Program> programs;
  std::vector<sim::ScenarioJob> ready;
};

base::Result<Jobs> jobs_of(const base::Options& o, const Subject& subject,
                           const plan::Program& program, const sim::Scenario& scenario) {
  Jobs jobs;
  const std::string cluster = o.string_or("cluster", subject.plan.cluster);
  const int hosts = static_cast<int>(subject.scene.cost.topology().hosts());
  for (const sim::Scenario::Job& job : scenario.jobs) {
    if (job.plan.empty()) {
      jobs.ready.push_back({&program, subject.scene.cost});
      continue;
    }
    TRY(const plan::Plan plan, plan::load_plan(job.plan));
    TRY(Scene scene, make_scene(plan.model, cluster, hosts, o.string_or("profile", ""),
                                plan.precision, plan.sequence, plan.world_size()));
    TRY(plan::Program lowered, plan::lower(plan, scene.model));
    jobs.programs.push_back(std::move(lowered));
    jobs.ready.push_back({&jobs.programs.back(), std::move(scene.cost)});
  }
  return jobs;
}

/// The report, and what it takes to show it.
struct Prediction {
  sim::SimReport report;
  std::optional<sim::ScenarioOutcome> scenario;
  base::Json goodput;
  Doubt doubt;
};

base::Result<Prediction> predict(const base::Options& o, const Subject& subject,
                                 const plan::Program& program) {
  const costmodel::CostModel& cost = subject.scene.cost;
  TRY(const std::optional<sim::Scenario> scenario, scenario_of(o, cost.topology()));
  const sim::SimOptions show{.timeline = o.has("trace"), .picture = o.has("html")};
  Prediction p{
      .report = {}, .scenario = {}, .goodput = {}, .doubt = {costmodel::uncertainty_of(cost), {}}};
  if (scenario) {
    const int draws = o.has("monte-carlo") ? o.count("monte-carlo") : 0;
    TRY(Jobs jobs, jobs_of(o, subject, program, *scenario));
    TRY(p.scenario, sim::run_scenario(program, cost, *scenario,
                                      {.show = show,
                                       .draws = draws,
                                       .threads = o.count("threads"),
                                       .jobs = std::move(jobs.ready)}));
    p.report = p.scenario->report;
  } else {
    TRY(p.report, sim::simulate(program, cost, show));
  }
  TRY(p.doubt.band, costmodel::band_of(cost, subject.plan, p.doubt.uncertainty.spread));
  if (const auto failures = failures_of(o, scenario)) {
    const std::uint64_t seed = scenario && !o.given("seed")
                                   ? scenario->jitter.seed
                                   : static_cast<std::uint64_t>(o.integer("seed"));
    p.goodput = goodput_of(*failures, subject.plan.world_size(), seed);
  }
  return p;
}

}  // namespace

base::Result<int> run_simulate(const base::Options& options, const Invocation&) {
  TRY_VOID(check_company(options));
  if (options.has("table")) return run_table(options);
  TRY(const Subject subject, subject_of(options));
  const auto& [plan, scene] = subject;
  TRY_VOID(check_ranks(plan, scene.cost.topology()));
  TRY(const plan::Program program, plan::lower(plan, scene.model));
  TRY(const Prediction predicted, predict(options, subject, program));
  const sim::SimReport& report = predicted.report;
  const std::int64_t limit = options.has("memory")
                                 ? static_cast<std::int64_t>(options.bytes("memory").raw())
                                 : scene.cost.topology().device_model(0).memory_bytes;
  const std::int64_t peak = worst_peak(report);
  const bool fits = peak <= limit;
  const std::string scenario = predicted.scenario ? sim::to_text(*predicted.scenario) : "";
  if (options.has("trace"))
    TRY_VOID(base::write_file_atomic(options.string("trace"), plan::to_text(report.timeline)));
  if (options.has("html")) {
    TRY(const std::string page, html_page(html_data(plan, scene.cost, report, limit, scenario)));
    TRY_VOID(base::write_file_atomic(options.string("html"), page));
  }
  if (options.flag("json")) {
    base::Json document({{"schema", "orrery.simulation/1"},
                         {"status", fits ? "ok" : "infeasible"},
                         {"plan", plan::to_json(plan)},
                         {"predicted", sim::to_json(report)},
                         {"origin", origin_json(scene.cost, predicted.doubt)},
                         {"memory_limit_bytes", limit},
                         {"shortfall_bytes", fits ? 0 : peak - limit},
                         {"program_fingerprint", program.fingerprint()}});
    if (!predicted.goodput.is_null()) document["goodput"] = predicted.goodput;
    if (predicted.scenario) document["scenario"] = sim::to_json(*predicted.scenario);
    print_json(document);
  } else {
    fmt::print("{}\n{}\nprices: {}\n{}\n{}", describe(plan, scene.cost.topology().device_count()),
               sim::to_text(report), describe_origin(scene.cost),
               describe_band(predicted.doubt, report.step_time_ps), scenario);
    if (!predicted.goodput.is_null()) fmt::print("{}", describe_goodput(predicted.goodput));
  }
  if (options.has("trace"))
    fmt::print(stderr, "timeline written to {}: open it at ui.perfetto.dev\n",
               options.string("trace"));
  if (options.has("html"))
    fmt::print(stderr, "page written to {}: open it in a browser\n", options.string("html"));
  if (fits) return 0;
  fmt::print(stderr, "does not fit: needs {} per device, {} more than the limit of {}\n",
             show_bytes(peak), show_bytes(peak - limit), show_bytes(limit));
  return 2;
}

}  // namespace orrery::cli
