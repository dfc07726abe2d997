#include "cli/tables/sweep_point.h"

#include <algorithm>

#include "base/json.h"
#include "base/numbers.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/minimise.h"
#include "cli/plan_question.h"
#include "cli/run_options.h"
#include "cli/tables/point_store.h"
#include "cli/text/show.h"
#include "costmodel/memory_limit.h"
#include "plan/lowering/lower.h"
#include "topologies/device_order.h"

namespace orrery::cli {
namespace {

constexpr std::array<std::string_view, 3> kStatuses{"ok", "infeasible", "error"};

bool is_option(const SweepBase& base, const std::string& name) {
  return std::ranges::count(base.options, name, &base::OptionSpec::name) > 0;
}

/// The command line of one point: what is given, but for what the point says.
std::vector<std::string> arguments_of(const SweepBase& base, const Assignment& point) {
  std::vector<std::string> arguments;
  std::string settings = base.given.given("set") ? base.given.text("set") : "";
  const auto add = [&](const std::string& name, const std::string& value) {
    if (name == "set") return;
    arguments.push_back("--" + name);
    arguments.push_back(value);
  };
  for (const base::OptionSpec& option : base.options) {
    const bool varied = std::ranges::count(point, option.name, &Assignment::value_type::first) > 0;
    if (varied || !base.given.given(option.name)) continue;
    if (option.type == base::OptionType::kFlag)
      arguments.push_back("--" + option.name);
    else
      add(option.name, base.given.text(option.name));
  }
  for (const auto& [name, value] : point) {
    if (is_option(base, name))
      add(name, value);
    else
      settings += fmt::format("{}{}={}", settings.empty() ? "" : ",", name, value);
  }
  if (!settings.empty()) arguments.insert(arguments.end(), {"--set", settings});
  return arguments;
}

void add_report(const plan::Plan& plan, const sim::SimReport& report, const CostModel& cost,
                PointResult& result) {
  result.step_ps = report.step_time_ps;
  result.tokens = plan.global_batch * plan.sequence;
  result.devices = cost.topology().device_count();
  result.ranks = plan.world_size();
  result.mfu = report.mfu;
  result.flops_per_s_device = report.model_flops_per_s_rank;
  result.plan = one_line(plan);
}

void add_memory(const FullestStage& stage, PointResult& result) {
  result.peak_bytes = stage.peak_bytes;
  result.limit_bytes = stage.limit_bytes;
}

void add_band(const Doubt& doubt, PointResult& result) {
  result.band_low = doubt.band.low;
  result.band_high = doubt.band.high;
}

/// What the run of --tokens takes with this plan; its energy, asked for or `minimised`, needs
/// another simulation.
Result<void> add_run(const base::Options& options, const plan::Plan& plan,
                     const sim::SimReport& known, const CostModel& cost, bool minimised,
                     PointResult& result) {
  const Topology& topology = cost.topology();
  TRY(const bool energy, wants_energy(options, topology, minimised));
  sim::SimReport report = known;
  if (energy && !report.energy) {
    TRY(const plan::Program program, plan::lower(plan, cost.model()));
    TRY(report, sim::simulate(program, cost, {.energy = true}));
  }
  TRY(const EnergyAndRun added, energy_and_run(options, report, topology, failures_of(options)));
  if (added.energy) result.joules_per_token = added.energy->joules_per_token;
  if (!added.run) return {};
  const sim::RunCost& run = added.run->cost;
  result.days = run.wall.raw() / 86'400;
  result.dollars = run.dollars;
  result.mwh = run.mwh;
  result.kg_co2 = run.kg_co2;
  if (options.has("deadline") || options.has("budget")) result.met = added.run->verdict.met();
  return {};
}

std::string lack(std::int64_t bytes) { return fmt::format("needs {} more", show_bytes(bytes)); }

std::string lack(const search::PlanAnswer& answer) {
  if (answer.status != search::Status::kInfeasible)
    return "the limit of effort ended the search before it found a plan";
  if (answer.shortfall_bytes > 0) return lack(answer.shortfall_bytes);
  return "no strategy divides model and batch";
}

Result<PointResult> search_point(const base::Options& options, PlanQuestion& question) {
  TRY(const LeastAnswer least, least_answer(options, question));
  const search::PlanAnswer& answer = least.answer;
  TRY(const CostModel cost,
      question.scene.cost.in_order(answer.candidates.empty()
                                       ? topologies::DeviceOrder{}
                                       : answer.candidates.front().plan.device_order));
  PointResult result;
  result.limit_bytes = costmodel::MemoryLimit(cost, question.request.memory_bytes).least();
  result.devices = cost.topology().device_count();
  if (answer.candidates.empty()) {
    result.status = PointStatus::kInfeasible;
    result.message = lack(answer);
    return result;
  }
  const search::Candidate& best = answer.candidates.front();
  result.status = PointStatus::kOk;
  add_report(best.plan, best.report, cost, result);
  add_memory(fullest_stage(best.plan, best.report, cost, question.request.memory_bytes), result);
  TRY(const Doubt doubt, doubt_of(best.plan, cost));
  add_band(doubt, result);
  result.gap = answer.certificate.gap;
  TRY_VOID(add_run(options, best.plan, best.report, cost, question.minimise == Minimise::kEnergy,
                   result));
  return result;
}

Result<PointResult> hold_point(const base::Options& options, const plan::Plan& plan,
                               const Scene& scene) {
  const CostModel& cost = scene.cost;
  TRY(const plan::Program program, plan::lower(plan, scene.model));
  TRY(const sim::SimReport report, sim::simulate(program, cost));
  PointResult result;
  add_report(plan, report, cost, result);
  TRY(const Doubt doubt, doubt_of(plan, cost));
  add_band(doubt, result);
  add_memory(fullest_stage(plan, report, cost, memory_of(options)), result);
  const bool fits = result.peak_bytes <= result.limit_bytes;
  result.status = fits ? PointStatus::kOk : PointStatus::kInfeasible;
  if (!fits) result.message = lack(result.peak_bytes - result.limit_bytes);
  TRY_VOID(add_run(options, plan, report, cost, false, result));
  return result;
}

/// Looks in the store first. `key`: what the result depends on; `evaluate`: makes it.
template <class Evaluate>
Result<PointResult> remembered(PointStore* store, const std::string& key,
                               const Evaluate& evaluate) {
  if (store == nullptr) return evaluate();
  TRY(const std::optional<PointResult> known, store->find(key));
  if (known) return *known;
  TRY(PointResult result, evaluate());
  TRY_VOID(store->put(key, result));
  return result;
}

Result<PointResult> evaluate(const SweepBase& base, const Assignment& point, PointStore* store) {
  const std::vector<std::string> arguments = arguments_of(base, point);
  base::CommandSpec spec{.name = "sweep", .summary = "", .options = base.options};
  TRY(const base::Options options, base::parse_options(spec, arguments));
  const std::string words =
      fmt::format("{} {}", version(), base::join(std::span(arguments), "\x1f"));
  if (base.held) {
    TRY(const Scene scene, scene_of(options, *base.held));
    const std::string key = fmt::format("{}\x1f{}\x1f{}", words, plan::fingerprint(*base.held),
                                        scene.cost.fingerprint());
    return remembered(store, key, [&] { return hold_point(options, *base.held, scene); });
  }
  TRY(PlanQuestion question, question_of(options));
  question.request.top = 1;
  question.request.relax = question.request.multipliers = false;
  return remembered(store, fmt::format("{}\x1f{}", words, question.scene.cost.fingerprint()),
                    [&] { return search_point(options, question); });
}

}  // namespace

std::string_view to_string(PointStatus status) { return kStatuses[as_index(as_int(status))]; }

double PointResult::tokens_per_s() const {
  return step_ps > 0 ? real(tokens) / (real(step_ps) / 1e12) : 0;
}

namespace {

/// Fields that may be missing, by their keys.
constexpr std::pair<const char*, std::optional<double> PointResult::*> kOfRun[] = {
    {"days", &PointResult::days},
    {"dollars", &PointResult::dollars},
    {"mwh", &PointResult::mwh},
    {"kg_co2", &PointResult::kg_co2},
    {"joules_per_token", &PointResult::joules_per_token}};

}  // namespace

base::Json to_json(const PointResult& r) {
  base::Json j{{"status", to_string(r.status)},
               {"message", r.message},
               {"step_time_ps", r.step_ps},
               {"tokens", r.tokens},
               {"devices", r.devices},
               {"ranks", r.ranks},
               {"peak_bytes", r.peak_bytes},
               {"limit_bytes", r.limit_bytes},
               {"mfu", r.mfu},
               {"model_flops_per_s_device", r.flops_per_s_device},
               {"band", {{"low", r.band_low}, {"high", r.band_high}}},
               {"gap", r.gap},
               {"plan", r.plan}};
  for (const auto& [key, field] : kOfRun)
    if (r.*field) j[key] = *(r.*field);
  if (r.met) j["met"] = *r.met;
  return j;
}

PointResult point_result(const base::Json& j) {
  const std::string status = j.at("status");
  PointResult r;
  r.status = PointStatus(std::ranges::find(kStatuses, status) - kStatuses.begin());
  r.message = j.at("message");
  r.step_ps = j.at("step_time_ps");
  r.tokens = j.at("tokens");
  r.devices = j.at("devices");
  r.ranks = j.at("ranks");
  r.peak_bytes = j.at("peak_bytes");
  r.limit_bytes = j.at("limit_bytes");
  r.mfu = j.at("mfu");
  r.flops_per_s_device = j.at("model_flops_per_s_device");
  r.band_low = j.at("band").at("low");
  r.band_high = j.at("band").at("high");
  r.gap = j.at("gap");
  r.plan = j.at("plan");
  for (const auto& [key, field] : kOfRun)
    if (j.contains(key)) r.*field = j.at(key).get<double>();
  if (j.contains("met")) r.met = j.at("met").get<bool>();
  return r;
}

Result<void> check_axes(const SweepBase& base, std::span<const Axis> axes) {
  std::vector<std::string> names;
  for (const base::OptionSpec& option : base.options) names.push_back(option.name);
  base::ErrorSink sink;
  for (const Axis& axis : axes)
    for (const std::string& name : axis.names)
      if (!is_option(base, name) && name.find('.') == std::string::npos)
        sink.add(base::make_error(kUsage, "'{}' is no option that a sweep varies", name)
                     .with_hint(base::did_you_mean(name, names, "options")));
  return sink.result();
}

PointResult run_point(const SweepBase& base, const Assignment& point, PointStore* store) {
  Result<PointResult> result = evaluate(base, point, store);
  if (result) return *std::move(result);
  std::string message;
  for (const base::Diagnostic& d : result.error())
    message += (message.empty() ? "" : " | ") + base::to_string(d);
  std::ranges::replace(message, '\n', ' ');
  PointResult faulty;
  faulty.message = std::move(message);
  return faulty;
}

}  // namespace orrery::cli
