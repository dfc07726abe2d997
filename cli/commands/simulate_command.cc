#include <algorithm>
#include <cstdio>
#include <deque>

#include "base/file.h"
#include "base/numbers.h"
#include "cli/command.h"
#include "cli/html/html_report.h"
#include "cli/html/page.h"
#include "cli/inputs.h"
#include "cli/run_options.h"
#include "cli/tables/simulate_table.h"
#include "cli/text/show.h"
#include "model/names.h"
#include "plan/check/check.h"
#include "plan/lowering/lower.h"
#include "sim/scenario/goodput.h"
#include "sim/scenario/scenario_run.h"
#include "sim/simulate.h"

namespace orrery::cli {

namespace {

base::OptionSpec degree(const char* name, const char* help, const char* default_value = "1") {
  return integer_option(name, "N", {1, 1 << 20}, help, default_value);
}

/// What is simulated: a plan of a file, or a model on a cluster.
std::vector<base::OptionSpec> subject_options() {
  return {text_option("plan", "FILE",
                      "plan (orrery.plan/1); the degrees below are for plans without a file"),
          model_option(false), cluster_option(false), hosts_option()};
}

/// The strategy of every layer, for plans without a file.
std::vector<base::OptionSpec> strategy_options() {
  return {
      degree("tp", "tensor-parallel degree"),
      degree("pp", "pipeline stages"),
      degree("dp", "data-parallel degree (default: what the cluster has left)", ""),
      degree("cp", "context-parallel degree"),
      degree("ep", "expert-parallel degree: experts split over ep of the cp * dp ranks"),
      flag_option("folded",
                  "experts split over ep of all tp * cp * dp ranks of a stage, each whole on its "
                  "rank (with --sequence-parallel)"),
      integer_option("zero", "0..3", {0, 3}, "sharded data parallelism", "0"),
      choice_option("grad-reduce", "WHEN", {"step", "micro_batch", "end"},
                    "gradients: of a layer beside the step's last backward, after every "
                    "micro-batch (zero 2, 3), or behind the last backward",
                    "step"),
      degree("micro-batch", "sequences per micro-batch and data-parallel rank"),
      global_batch_option(),
      choice_option("schedule", "S",
                    {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe-v"},
                    "pipeline schedule", "1f1b"),
      degree("virtual-stages",
             "stages per pipeline rank, of the interleaved schedule; zb-v and dualpipe-v have two"),
      choice_option("recompute", "R", {"none", "selective", "operator", "full", "offload"},
                    "activations computed again in the backward pass", "none"),
      choice_option("states", "WHERE", {"device", "host"},
                    "optimizer states: on the device, or on the host but for their update",
                    "device"),
      flag_option("sequence-parallel", "split norms and residuals along the sequence over tp"),
      degree(
          "tensor-pieces",
          "with --sequence-parallel: collectives of tp beside their products, in so many pieces")};
}

std::vector<base::OptionSpec> setting_options() {
  return joined({{sequence_option(), precision_option(), memory_option()},
                 adapter_options(),
                 price_options(),
                 {output_option("trace", "FILE", "write the predicted timeline (orrery.trace/1)"),
                  json_option()}});
}

std::vector<base::OptionSpec> scenario_options() {
  return {text_option("scenario", "FILE",
                      "slow or failed links, slow devices, jitter, traffic and jobs of "
                      "others, failures (orrery.scenario/1): what they cost"),
          integer_option("monte-carlo", "N", {1, 1'000'000},
                         "run the scenario's jitter with N seeds: percentiles of the step time")};
}

/// Failures and checkpoints, as failure_options() has them; the seed is of jitter too.
std::vector<base::OptionSpec> goodput_options() {
  return joined(
      {failure_options("mean time between failures of one device: adds goodput under "
                       "failures"),
       {integer_option("seed", "N", {0, 1 << 30},
                       "of jitter and simulated failures (default: the scenario's)", "1")}});
}

std::vector<base::OptionSpec> output_options() {
  return {output_option("html", "FILE",
                        "write a page to look at: timeline, memory, links (opens from disk)"),
          text_option("table", "ROWS.csv",
                      "evaluate one plan a row; options above are for empty cells"),
          flag_option("bands", "with --table: add the 80 % band of each row"),
          output_option("out", "RESULTS.csv", "where the results of --table go (default: stdout)"),
          integer_option("threads", "N", {1, kMostThreads},
                         "rows of --table, runs of --monte-carlo in parallel, each with its memory",
                         "1")};
}

/// The enumerator up to `last` of this name. @pre there is one.
template <class E>
E named(std::string_view name, E last) {
  const auto rows = model::names_up_to(last);
  return std::ranges::find(rows, name, &base::Named<E>::name)->value;
}

/// Everything but dp, which has a default of its own; sequence 0: the model's.
plan::UniformOptions strategy_of(const Options& o) {
  return {.tp = o.count("tp"),
          .pp = o.count("pp"),
          .ep = o.count("ep"),
          .zero = o.count("zero"),
          .folded = o.flag("folded"),
          .sequence_parallel = o.flag("sequence-parallel"),
          .recompute = named(o.string("recompute"), plan::kLastRecompute),
          .grad_reduce = named(o.string("grad-reduce"), plan::GradReduce::kEnd),
          .tensor_pieces = o.count("tensor-pieces"),
          .states = named(o.string("states"), plan::States::kHost),
          .schedule = named(o.string("schedule"), plan::kLastSchedule),
          .micro_batch = o.integer("micro-batch"),
          .global_batch = o.integer("global-batch"),
          .sequence = sequence_of(o),
          .precision = precision_of(o),
          .virtual_stages = o.count("virtual-stages"),
          .cp = o.count("cp"),
          .uneven_stages = true};
}

Result<Plan> plan_from_flags(const Options& o, const ModelSpec& model, const Topology& cluster) {
  plan::UniformOptions u = strategy_of(o);
  const int devices = as_int(cluster.device_count()), used = u.tp * u.pp * u.cp;
  if (!o.has("dp") && devices % used != 0) {
    return refuse(kInconsistent, "name --dp as well, or other degrees",
                  "--tp {} × --pp {}{} does not divide the cluster's {} devices", u.tp, u.pp,
                  u.cp > 1 ? fmt::format(" × --cp {}", u.cp) : "", devices);
  }
  u.dp = o.has("dp") ? o.count("dp") : devices / used;
  return plan::uniform_plan(model, o.string("cluster"), o.count("hosts"), u);
}

struct Subject {
  Plan plan;
  Scene scene;
};

Result<Subject> subject_of(const Options& o) {
  if (o.has("plan")) {
    TRY(Plan plan, plan::load_plan(o.string("plan")));
    TRY(Scene scene, scene_of(o, plan));
    return Subject{std::move(plan), std::move(scene)};
  }
  for (const char* name : {"model", "cluster"})
    if (!o.has(name)) {
      return refuse(kUsage, "give --plan FILE, or --model and --cluster with degrees",
                    "--{} is missing", name);
    }
  const int ranks =
      o.has("dp") ? as_int(o.integer("tp") * o.integer("pp") * o.integer("cp") * o.integer("dp"))
                  : 0;
  TRY(const PriceNames prices, price_names(o));
  TRY(const model::Adapter adapter, adapter_of(o));
  TRY(Scene scene, make_scene(o.string("model"), o.string("cluster"), o.count("hosts"), prices,
                              precision_of(o), sequence_of(o), ranks, {}, adapter));
  TRY_VOID(check_hosts(o, scene.cost.topology()));
  TRY(Plan plan, plan_from_flags(o, scene.model, scene.cost.topology()));
  return Subject{std::move(plan), std::move(scene)};
}

constexpr double kWorkSeconds = 30 * 86'400.0;  // of a simulated run
constexpr int kRuns = 200;

/// Of the scenario, or of --mtbf and what goes with it.
std::optional<sim::DeviceFailures> all_failures(const Options& o,
                                                const std::optional<sim::Scenario>& scenario) {
  return scenario && scenario->failures ? scenario->failures : failures_of(o);
}

/// Goodput under failures: by formula, and the spread of simulated runs.
Json goodput_of(const sim::DeviceFailures& f, int devices, std::uint64_t seed) {
  const sim::FailureModel m = f.of_job(devices);
  const base::Seconds interval = f.interval.value_or(sim::best_interval(m));
  const std::vector<double> runs =
      sim::goodput_samples(m, interval, base::Seconds(kWorkSeconds), seed, kRuns);
  return {{"job_mtbf_s", m.job_mtbf.raw()},       {"checkpoint_interval_s", interval.raw()},
          {"goodput", sim::goodput(m, interval)}, {"p10", sim::percentile(runs, 10)},
          {"p50", sim::percentile(runs, 50)},     {"p90", sim::percentile(runs, 90)}};
}

std::string describe_goodput(const Json& g) {
  const auto at = [&](const char* key) { return g[key].get<double>(); };
  return fmt::format(
      "goodput      {:.1f} %  (a failure every {}, a checkpoint every {}; {:.1f} to {:.1f} % in 8 "
      "of 10 simulated runs of 30 days of work)\n",
      100 * at("goodput"), base::to_string(base::Seconds(at("job_mtbf_s"))),
      base::to_string(base::Seconds(at("checkpoint_interval_s"))), 100 * at("p10"),
      100 * at("p90"));
}

Result<int> run_table(const Options& o) {
  for (const char* name :
       {"plan", "trace", "json", "html", "scenario", "monte-carlo", "mtbf", "energy", "tokens"}) {
    if (!o.given(name)) continue;
    return refuse(kUsage, "a table has one plan a row, and its results are a table",
                  "--table and --{} do not go together", name);
  }
  TRY(const PriceNames prices, price_names(o));
  TableRequest request{.rows_file = o.string("table"),
                       .out_file = o.string_or("out", ""),
                       .prices = prices,
                       .memory_limit_bytes = memory_of(o),
                       .threads = o.count("threads"),
                       .bands = o.flag("bands"),
                       .defaults = {}};
  TableDefaults& d = request.defaults;
  if (o.has("model")) {
    TRY(ModelSpec base, model::find_model(o.string("model")));
    TRY(const model::Adapter adapter, adapter_of(o));
    TRY(d.model, model::with_adapter(std::move(base), adapter));
  }
  d.cluster = o.string_or("cluster", "");
  if (o.given("hosts")) d.hosts = o.integer("hosts");
  d.plan = strategy_of(o);
  d.plan.dp = o.has("dp") ? o.count("dp") : 0;
  return simulate_table(request);
}

/// What would be read and have no effect.
Result<void> check_company(const Options& o) {
  TRY_VOID(cli::check_company(
      o, {{"monte-carlo", "scenario"}, {"bands", "table"}, {"seed", "scenario", "mtbf"}}));
  TRY_VOID(check_run_options(o));
  if (!o.has("plan")) return {};
  std::vector<base::OptionSpec> stated = strategy_options();
  stated.push_back(sequence_option());
  stated.push_back(precision_option());
  for (const base::OptionSpec& s : adapter_options()) stated.push_back(s);
  for (const base::OptionSpec& s : stated)
    if (o.given(s.name))
      return base::fail(base::make_error(kUsage, "--{} beside --plan, which states it", s.name)
                            .with_hint("leave one of them out"));
  return {};
}

Result<std::optional<sim::Scenario>> scenario_of(const Options& o, const Topology& cluster) {
  if (!o.has("scenario")) return std::optional<sim::Scenario>();
  TRY(sim::Scenario scenario, sim::load_scenario(o.string("scenario"), cluster));
  if (scenario.failures && o.has("mtbf")) {
    return refuse(kUsage, "leave one of them out",
                  "--mtbf and the failures of scenario '{}' do not go together", scenario.name);
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

Result<Jobs> jobs_of(const Options& o, const Subject& subject, const plan::Program& program,
                     const sim::Scenario& scenario) {
  Jobs jobs;
  TRY(const PriceNames prices, price_names(o));
  const std::string cluster = o.string_or("cluster", subject.plan.cluster);
  const int hosts = as_int(subject.scene.cost.topology().hosts());
  for (const sim::Scenario::Job& job : scenario.jobs) {
    if (job.plan.empty()) {
      jobs.ready.push_back({&program, subject.scene.cost});
      continue;
    }
    TRY(const Plan plan, plan::load_plan(job.plan));
    TRY(Scene scene, make_scene(plan.model, cluster, hosts, prices, plan.precision, plan.sequence,
                                plan.world_size(), plan.device_order, plan.adapter));
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
  Json goodput;
  EnergyAndRun run;
  Doubt doubt;
};

Result<Prediction> predict(const Options& o, const Subject& subject, const plan::Program& program) {
  const CostModel& cost = subject.scene.cost;
  TRY(const std::optional<sim::Scenario> scenario, scenario_of(o, cost.topology()));
  TRY(const bool energy, wants_energy(o, cost.topology()));
  const sim::SimOptions show{
      .timeline = o.has("trace"), .picture = o.has("html"), .energy = energy};
  Prediction p{.report = {}, .scenario = {}, .goodput = {}, .run = {}, .doubt = {}};
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
  TRY(p.doubt, doubt_of(subject.plan, cost));
  const std::optional<sim::DeviceFailures> failures = all_failures(o, scenario);
  if (failures) {
    const std::uint64_t seed = scenario && !o.given("seed")
                                   ? scenario->jitter.seed
                                   : static_cast<std::uint64_t>(o.integer("seed"));
    p.goodput = goodput_of(*failures, subject.plan.world_size(), seed);
  }
  TRY(p.run, energy_and_run(o, p.report, cost.topology(), failures));
  return p;
}

Result<int> run(const Options& options, const Invocation&) {
  TRY_VOID(check_company(options));
  if (options.has("table")) return run_table(options);
  TRY(const Subject subject, subject_of(options));
  const auto& [plan, scene] = subject;
  TRY_VOID(check_ranks(plan, scene.cost.topology()));
  TRY(const plan::Program program, plan::lower(plan, scene.model));
  TRY(const Prediction predicted, predict(options, subject, program));
  const sim::SimReport& report = predicted.report;
  const FullestStage fullest = fullest_stage(plan, report, scene.cost, memory_of(options));
  const std::int64_t limit = fullest.limit_bytes, peak = fullest.peak_bytes;
  const bool fits = fullest.fits();
  const std::string scenario = predicted.scenario ? sim::to_text(*predicted.scenario) : "";
  if (options.has("trace"))
    TRY_VOID(base::write_file_atomic(options.string("trace"), plan::to_text(report.timeline)));
  if (options.has("html")) {
    const StepWords words{describe_band(predicted.doubt, report.step_time_ps), scenario};
    TRY(const std::string page,
        page_of("report", html_data(plan, scene.cost, report, limit, words)));
    TRY_VOID(base::write_file_atomic(options.string("html"), page));
  }
  if (options.flag("json")) {
    Json document({{"schema", "orrery.simulation/1"},
                   {"status", fits ? "ok" : "infeasible"},
                   {"plan", plan::to_json(plan)},
                   {"predicted", sim::to_json(report)},
                   {"origin", origin_json(scene.cost, predicted.doubt)},
                   {"memory_limit_bytes", limit},
                   {"shortfall_bytes", fits ? 0 : peak - limit},
                   {"program_fingerprint", program.fingerprint()}});
    if (!predicted.goodput.is_null()) document["goodput"] = predicted.goodput;
    if (predicted.scenario) document["scenario"] = sim::to_json(*predicted.scenario);
    predicted.run.add_to(document);
    print_json(document);
  } else {
    fmt::print("{}\n{}\nmemory: {}\nprices: {}\n{}\n{}",
               describe(plan, scene.cost.topology().device_count()), sim::to_text(report),
               memory_text(fullest), describe_origin(scene.cost),
               describe_band(predicted.doubt, report.step_time_ps), scenario);
    if (!predicted.goodput.is_null()) fmt::print("{}", describe_goodput(predicted.goodput));
    fmt::print("{}", predicted.run.text());
  }
  if (options.has("trace"))
    say("timeline written to {}: open it at ui.perfetto.dev\n", options.string("trace"));
  if (options.has("html"))
    say("page written to {}: open it in a browser\n", options.string("html"));
  if (fits) return predicted.run.exit_code();
  say("does not fit: needs {} per device, {} more than the limit of {}\n", show_bytes(peak),
      show_bytes(peak - limit), show_bytes(limit));
  return 2;
}

}  // namespace

Command simulate_command() {
  return {
      {.name = "simulate",
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
                          scenario_options(), goodput_options(), run_options(), output_options()})},
      run};
}

}  // namespace orrery::cli
