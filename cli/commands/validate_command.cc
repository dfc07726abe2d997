#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/numbers.h"
#include "cli/command.h"
#include "cli/executor_calls.h"
#include "cli/inputs.h"
#include "cli/local_profile.h"
#include "cli/measured/validate_plans.h"
#include "cli/text/show.h"
#include "plan/lowering/lower.h"
#include "sim/simulate.h"

namespace orrery::cli {

namespace fs = std::filesystem;

base::OptionSpec precision_of_training() {
  return choice_option("precision", "P", {"fp32", "bf16"}, "training precision", "fp32");
}

namespace {

/// Beyond this the machine is not the one that was calibrated: a warning.
constexpr double kDriftOfNote = 0.05;

Result<std::string> profile_of_this_machine(const Options& o, int ranks) {
  if (o.has("profile")) return o.string("profile");
  TRY(const fs::path path, calibration_file({o.string("device"), ranks, precision_of(o)}));
  if (fs::exists(path)) {
    TRY(const model::Profile known, model::load_profile(path.string()));
    if (is_of_this_machine(known, ranks)) return path.string();
    say("{} is of another machine: {}\n", path.string(), known.provenance.machine);
  }
  std::error_code failed;
  fs::create_directories(path.parent_path(), failed);
  if (failed)
    return base::fail(kIo, "cannot create {}: {}", path.parent_path().string(), failed.message());
  say("calibrating this machine with {} ranks into {}\n", ranks, path.string());
  const std::vector<std::string> arguments{"calibrate",
                                           "--out",
                                           path.string(),
                                           "--ranks",
                                           std::to_string(ranks),
                                           "--device",
                                           o.string("device"),
                                           "--dtype",
                                           o.string("precision"),
                                           "--budget",
                                           fmt::format("{}s", o.duration("budget").raw())};
  int code = 0;
  if (ranks == 1 || launched_as_rank()) {
    code = run_program(arguments);
  } else {
    TRY(code, launch(ranks, arguments));
  }
  if (code != 0) return base::fail(kDevice, "calibration ended with exit code {}", code);
  return path.string();
}

ValidationRow predicted(const NamedPlan& named, const sim::SimReport& report, const Scene& scene) {
  ValidationRow row;
  row.name = named.name;
  row.predicted_s = real(report.step_time_ps) * 1e-12;
  // What trains counts its tensors, not the framework's own bytes.
  const std::int64_t framework = scene.cost.profile() ? scene.cost.profile()->context_bytes : 0;
  for (const sim::StageReport& s : report.stages)
    row.predicted_peak_bytes.push_back(s.peak_memory_bytes - framework);
  return row;
}

/// What a fixed work took when the machine was calibrated, and while it trained.
struct Drift {
  model::Control then, now;
  double ratio() const { return now.compute_seconds / then.compute_seconds; }
};

std::vector<std::string> within_noise(const std::vector<ValidationRow>& rows,
                                      const ValidationSummary& s) {
  std::vector<std::string> names;
  for (const std::size_t i : s.fastest_within_noise) names.push_back(rows[i].name);
  return names;
}

Json to_json(const std::vector<ValidationRow>& rows, const std::vector<NamedPlan>& plans,
             const std::optional<Drift>& drift) {
  const ValidationSummary s = summarize(rows);
  Json list = Json::array();
  for (std::size_t i = 0; i < rows.size(); ++i)
    list.push_back({{"name", rows[i].name},
                    {"plan", plan::to_json(plans[i].plan)},
                    {"predicted",
                     {{"step_time_s", rows[i].predicted_s},
                      {"peak_memory_bytes", rows[i].predicted_peak_bytes}}},
                    {"measured",
                     {{"step_time_s", rows[i].measured_s()},
                      {"spread", rows[i].spread()},
                      {"noise", rows[i].noise()},
                      {"rounds_s", rows[i].rounds_s},
                      {"peak_memory_bytes", rows[i].measured_peak_bytes}}}});
  Json document{{"schema", "orrery.validation/1"},
                {"plans", std::move(list)},
                {"summary",
                 {{"mean_abs_step_error", s.step.mean},
                  {"max_abs_step_error", s.step.largest},
                  {"max_memory_error", s.max_memory_error},
                  {"max_memory_shortfall", s.max_memory_shortfall},
                  {"fastest_within_noise", within_noise(rows, s)},
                  {"regret", s.regret},
                  {"rank_correlation", s.rank_correlation}}}};
  if (drift) {
    const StepErrors corrected = step_errors(rows, drift->ratio());
    document["drift"] = {{"calibrated", model::to_json(drift->then)},
                         {"now", model::to_json(drift->now)},
                         {"ratio", drift->ratio()},
                         {"mean_abs_step_error", corrected.mean},
                         {"max_abs_step_error", corrected.largest}};
  }
  return document;
}

void print_rows(const std::vector<ValidationRow>& rows, const std::optional<Drift>& drift) {
  fmt::print("{:<22} {:>10} {:>10} {:>8} {:>8} {:>10} {:>9} {:>9} {:>7}\n", "plan", "predicted",
             "measured", "noise", "error", "with drift", "memory", "measured", "error");
  const auto most = [](const std::vector<std::int64_t>& v) {
    return v.empty() ? 0 : *std::ranges::max_element(v);
  };
  for (const ValidationRow& r : rows) {
    const auto [least, largest] = r.memory_errors();
    fmt::print("{:<22} {:>10} {:>10} {:>7.1f}% {:>+7.1f}% {:>10} {:>9} {:>9} {:>+6.1f}%\n", r.name,
               show_seconds(r.predicted_s), show_seconds(r.measured_s()), 100 * r.noise(),
               100 * r.step_error(),
               drift ? fmt::format("{:+.1f}%", 100 * r.step_error(drift->ratio())) : "-",
               show_bytes(most(r.predicted_peak_bytes)), show_bytes(most(r.measured_peak_bytes)),
               100 * (std::abs(least) > largest ? least : largest));
  }
}

void print_summary(const std::vector<ValidationRow>& rows, const std::optional<Drift>& drift) {
  const ValidationSummary s = summarize(rows);
  fmt::print("\nstep time   mean |error| {:.1f} %, largest {:.1f} %\n", 100 * s.step.mean,
             100 * s.step.largest);
  if (drift) {
    const StepErrors corrected = step_errors(rows, drift->ratio());
    fmt::print(
        "with drift  mean |error| {:.1f} %, largest {:.1f} %: predictions times {:.3f}, what the "
        "control takes now over what it took at calibration\n",
        100 * corrected.mean, 100 * corrected.largest, drift->ratio());
  }
  fmt::print(
      "choice      predicted best: {}; measured best: {}; regret {:.1f} %; fastest within noise: "
      "{}\n",
      rows[s.chosen].name, rows[s.fastest].name, 100 * s.regret,
      fmt::join(within_noise(rows, s), " | "));
  fmt::print("order       rank correlation {:.2f}\n", s.rank_correlation);
  fmt::print("memory      largest error {:.1f} %, {}\n", 100 * s.max_memory_error,
             s.max_memory_shortfall > 0
                 ? fmt::format("under the measured by up to {:.1f} %", 100 * s.max_memory_shortfall)
                 : "never under the measured");
  if (!drift) {
    fmt::print(
        "control     the profile has none: drift of this machine cannot be told from errors; "
        "'orrery calibrate' writes one\n");
    return;
  }
  const auto& [then, now] = *drift;
  fmt::print(
      "control     a fixed step: {} at calibration (spread {:.1f} %), {} now (spread {:.1f} %)",
      show_seconds(then.compute_seconds), 100 * then.spread, show_seconds(now.compute_seconds),
      100 * now.spread);
  if (then.collective_seconds > 0 && now.collective_seconds > 0)
    fmt::print("; a fixed all-reduce: {}, {}", show_seconds(then.collective_seconds),
               show_seconds(now.collective_seconds));
  fmt::print("\n");
}

void warn_of_drift(const Drift& drift, const std::string& profile) {
  const double change = drift.ratio() - 1;
  if (std::abs(change) <= kDriftOfNote) return;
  say("warning: this machine is {:.0f} % {} than when {} was calibrated; errors are of "
      "both, calibrate again\n",
      100 * std::abs(change), change > 0 ? "slower" : "faster", profile);
}

Result<std::vector<plan::Program>> programs_of(const std::vector<NamedPlan>& plans,
                                               const ModelSpec& model) {
  std::vector<plan::Program> programs;
  for (const NamedPlan& p : plans) {
    TRY(plan::Program program, plan::lower(p.plan, model));
    programs.push_back(std::move(program));
  }
  return programs;
}

/// Plans of --plan, by the names of their files: all on --ranks ranks and in --precision, of one
/// batch, sequence length and adapter.
Result<std::vector<NamedPlan>> plans_of_files(const Options& o) {
  for (const char* name : {"plans", "global-batch", "sequence-length"})
    if (o.given(name))
      return refuse(kUsage, "leave it out", "--{} is said by the files of --plan", name);
  std::vector<NamedPlan> plans;
  for (const std::string& file : o.strings("plan")) {
    TRY(Plan plan, plan::load_plan(file));
    const auto is_not = [&](std::string_view what, const auto& own, const auto& wanted) {
      return refuse(kInconsistent, "plans that train in turns share it", "{} is of {} {}, not {}",
                    file, own, what, wanted);
    };
    if (plan.world_size() != o.count("ranks"))
      return is_not("ranks", plan.world_size(), o.count("ranks"));
    if (plan.precision != precision_of(o))
      return is_not("precision", to_string(plan.precision), to_string(precision_of(o)));
    const Plan& first = plans.empty() ? plan : plans.front().plan;
    if (plan.sequence != first.sequence) return is_not("tokens", plan.sequence, first.sequence);
    if (plan.global_batch != first.global_batch)
      return is_not("sequences a step", plan.global_batch, first.global_batch);
    if (plan.adapter != first.adapter)
      return is_not("adapters of rank", plan.adapter.rank, first.adapter.rank);
    const std::string stem = fs::path(file).stem().string();
    const bool known = std::ranges::count(plans, stem, &NamedPlan::name) > 0;
    plans.push_back({known ? file : stem, std::move(plan)});
  }
  return plans;
}

Result<std::vector<NamedPlan>> plans_to_train(const Options& o, const ModelSpec& model) {
  if (o.given("plan")) return plans_of_files(o);
  const std::int64_t sequence = o.has("sequence-length") ? sequence_of(o) : model.max_positions;
  return validation_plans(model, o.string("cluster"), o.count("ranks"), o.integer("global-batch"),
                          sequence, precision_of(o), as_index(o.integer("plans")));
}

Result<int> run(const Options& options, const Invocation& invocation) {
  const int ranks = options.count("ranks");
  TRY(ModelSpec whole, model::find_model(options.string("model")));
  const model::Precision precision = precision_of(options);
  TRY(const std::vector<NamedPlan> plans, plans_to_train(options, whole));
  const Plan& first = plans.front().plan;
  TRY(const ModelSpec model, model::with_adapter(std::move(whole), first.adapter));
  if (!launched_as_rank()) TRY_VOID(check_cores(ranks, options));
  TRY(const std::vector<plan::Program> programs, programs_of(plans, model));
  TRY(const std::string profile, profile_of_this_machine(options, ranks));
  for (const plan::Program& p : programs) TRY_VOID(check_trainable(p));
  const auto scene_here = [&] {
    return make_scene(options.string("model"), options.string("cluster"), 1, {.profile = profile},
                      precision, first.sequence, ranks, {}, first.adapter);
  };
  if (ranks > 1 && !launched_as_rank()) {
    TRY_VOID(scene_here());  // what is wrong with it is said before ranks start
    return launch(ranks, invocation.arguments);
  }
  const int rounds = options.count("rounds");
  TRY(const RoundsOutcome measured,
      train_in_rounds_here(programs, {.rounds = rounds,
                                      .steps = options.count("steps"),
                                      .warmup = 1,
                                      .device = options.string("device"),
                                      .precision = precision,
                                      .on_round = [&](int r) {
                                        say("training: round {} of {}\n", r + 1, rounds);
                                      }}));
  if (!measured.writes) return 0;
  TRY(const Scene scene, scene_here());
  std::vector<ValidationRow> rows;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    TRY(const sim::SimReport report, sim::simulate(programs[i], scene.cost, {}));
    rows.push_back(predicted(plans[i], report, scene));
    rows.back().rounds_s = measured.report.programs[i].seconds;
    rows.back().measured_peak_bytes = measured.report.programs[i].peak_memory_bytes;
  }
  std::optional<Drift> drift;
  if (const auto& p = scene.cost.profile(); p && p->control)
    drift = {*p->control, measured.report.control};
  if (drift) warn_of_drift(*drift, profile);
  if (options.flag("json")) {
    print_json(to_json(rows, plans, drift));
    return 0;
  }
  print_rows(rows, drift);
  print_summary(rows, drift);
  return 0;
}

}  // namespace

Command validate_command() {
  base::OptionSpec own =
      text_option("plan", "FILE", "a plan to train in place of the fixed set; may be repeated");
  own.repeated = true;
  return {
      {.name = "validate",
       .summary =
           "calibrate if needed, then predict and train a set of plans here and hold them side by "
           "side",
       .examples = {{"orrery validate --model gpt2-tiny --ranks 2", "8 plans on two processes"},
                    {"orrery validate --model llama-tiny --ranks 4 --plans 4 --json",
                     "for a script"},
                    {"orrery validate --model gpt2-tiny --plan a.json --plan b.json",
                     "two plans of your own"},
                    {"orrery validate --model gpt2-xl --ranks 1 --device cuda --precision bf16 "
                     "--cluster dgx-h200",
                     "one GPU of a host that the catalog knows"}},
       .options =
           {model_option(true),
            integer_option("ranks", "N", {1, 1024}, "processes on this machine", "2"),
            choice_option("device", "D", {"cpu", "cuda"}, "what trains", "cpu"),
            cluster_of_machine(), precision_of_training(), own,
            integer_option("plans", "K", {1, 64}, "how many plans of the fixed set", "8"),
            integer_option("rounds", "R", {1, 1000}, "rounds in which all plans take turns", "15"),
            integer_option("steps", "K", {2, 100000},
                           "steps a plan trains for in a round, the first to warm up", "3"),
            integer_option("global-batch", "B", {1, 1 << 20}, "sequences per step", "16"),
            sequence_option(),
            text_option(
                "profile", "FILE",
                "profile of this machine (default: calibrated once, kept in the user's cache)"),
            duration_option("budget", {1, 3600}, "time for calibration, if it is needed", "100s"),
            oversubscribe_option(), json_option()}},
      run,
      true};
}

}  // namespace orrery::cli
