#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "cli/command.h"
#include "cli/executor_calls.h"
#include "cli/inputs.h"
#include "cli/show.h"
#include "cli/validate_plans.h"
#include "plan/lower.h"
#include "sim/simulate.h"

namespace orrery::cli {

using base::OptionType;
namespace fs = std::filesystem;

base::OptionSpec precision_of_training() {
  base::OptionSpec o = precision_option();
  o.default_value = "fp32";
  return o;
}

const base::CommandSpec& validate_spec() {
  static const base::CommandSpec kSpec{
      .name = "validate",
      .summary = "calibrate if needed, then predict and train a set of plans here and hold them side by side",
      .examples = {{"orrery validate --model gpt2-tiny --ranks 2", "8 plans on two processes"},
                   {"orrery validate --model llama-tiny --ranks 4 --plans 4 --json", "for a script"},
                   {"orrery validate --model gpt2-xl --ranks 1 --device cuda --precision bf16 --cluster dgx-h200", "one GPU of a host that the catalog knows"}},
      .options = {model_option(true),
                  {.name = "ranks", .value_name = "N", .type = OptionType::kInt, .default_value = "2", .min = 1, .max = 1024, .help = "processes on this machine"},
                  {.name = "device", .value_name = "D", .default_value = "cpu", .choices = {"cpu", "cuda"}, .help = "what trains"},
                  cluster_of_machine(), precision_of_training(),
                  {.name = "plans", .value_name = "K", .type = OptionType::kInt, .default_value = "8", .min = 1, .max = 64, .help = "how many plans of the fixed set"},
                  {.name = "steps", .value_name = "K", .type = OptionType::kInt, .default_value = "20", .min = 2, .max = 100000, .help = "steps a plan trains for"},
                  {.name = "global-batch", .value_name = "B", .type = OptionType::kInt, .default_value = "16", .min = 1, .max = 1 << 20, .help = "sequences per step"},
                  sequence_option(),
                  {.name = "profile", .value_name = "FILE", .help = "profile of this machine (default: calibrated once, kept in the user's cache)"},
                  {.name = "budget", .value_name = "TIME", .type = OptionType::kDuration, .default_value = "100s", .min = 1, .max = 3600, .help = "time for calibration, if it is needed"},
                  json_option()}};
  return kSpec;
}

namespace {

/// Folder for plans and logs of one run; gone at the end.
class ScratchFolder {
 public:
  ScratchFolder() : path_(fs::temp_directory_path() / fmt::format("orrery-validate-{}", ::getpid())) { fs::create_directories(path_); }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

fs::path cached_profile(const base::Options& o, int ranks) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const fs::path base = cache ? fs::path(cache) : fs::path(home ? home : ".") / ".cache";
  return base / "orrery" / "profiles" / fmt::format("{}-{}-ranks-{}.json", o.string("device") == "cpu" ? "local" : o.string("device"), ranks, o.string("precision"));
}

base::Result<std::string> profile_of_this_machine(const base::Options& o, int ranks) {
  if (o.has("profile")) return o.string("profile");
  const fs::path path = cached_profile(o, ranks);
  if (fs::exists(path)) return path.string();
  std::error_code failed;
  fs::create_directories(path.parent_path(), failed);
  if (failed) return base::fail(base::ErrorCode::kIo, "cannot create {}: {}", path.parent_path().string(), failed.message());
  fmt::print(stderr, "calibrating this machine with {} ranks into {}\n", ranks, path.string());
  const std::vector<std::string> arguments{"calibrate", "--out", path.string(), "--ranks", std::to_string(ranks), "--device", o.string("device"),
                                           "--dtype", o.string("precision"), "--budget", fmt::format("{}s", o.duration("budget").raw())};
  if (ranks == 1) {
    const int code = run_program(arguments);
    if (code != 0) return base::fail(base::ErrorCode::kDevice, "calibration ended with exit code {}", code);
    return path.string();
  }
  TRY(const int code, launch(ranks, arguments));
  if (code != 0) return base::fail(base::ErrorCode::kDevice, "calibration ended with exit code {}", code);
  return path.string();
}

base::Result<ValidationRow> predict(const NamedPlan& named, const Scene& scene) {
  TRY(const plan::Program program, plan::lower(named.plan, scene.model));
  TRY(const sim::SimReport report, sim::simulate(program, scene.cost, {}));
  ValidationRow row;
  row.name = named.name;
  row.predicted_s = static_cast<double>(report.step_time_ps) * 1e-12;
  // What trains counts its tensors, not the framework's own bytes.
  const std::int64_t framework = scene.cost.profile() ? scene.cost.profile()->context_bytes : 0;
  for (const sim::StageReport& s : report.stages) row.predicted_peak_bytes.push_back(s.peak_memory_bytes - framework);
  return row;
}

base::Result<void> measure(const NamedPlan& named, int ranks, int steps, const std::string& device, const ScratchFolder& scratch, ValidationRow& row) {
  const std::string plan_file = scratch.file("plan.json"), log_file = scratch.file("log.json");
  TRY_VOID(base::write_json(plan_file, plan::to_json(named.plan)));
  const std::vector<std::string> arguments{"train", "--plan", plan_file, "--ranks", std::to_string(ranks), "--steps", std::to_string(steps),
                                           "--warmup", std::to_string(std::min(3, steps - 1)), "--device", device, "--log", log_file, "--quiet"};
  int code = 0;
  if (ranks == 1) {
    code = run_program(arguments);
  } else {
    TRY(code, launch(ranks, arguments));
  }
  if (code != 0) return base::fail(base::ErrorCode::kDevice, "training with plan '{}' ended with exit code {}", named.name, code);
  TRY(const TrainLog log, load_train_log(log_file));
  row.measured_s = log.step_time_s;
  row.measured_peak_bytes = log.peak_memory_bytes;
  return {};
}

base::Json to_json(const std::vector<ValidationRow>& rows, const std::vector<NamedPlan>& plans, const ValidationSummary& s) {
  base::Json list = base::Json::array();
  for (std::size_t i = 0; i < rows.size(); ++i)
    list.push_back({{"name", rows[i].name},
                    {"plan", plan::to_json(plans[i].plan)},
                    {"predicted", {{"step_time_s", rows[i].predicted_s}, {"peak_memory_bytes", rows[i].predicted_peak_bytes}}},
                    {"measured", {{"step_time_s", rows[i].measured_s}, {"peak_memory_bytes", rows[i].measured_peak_bytes}}}});
  return {{"schema", "orrery.validation/1"},
          {"plans", std::move(list)},
          {"summary",
           {{"mean_abs_step_error", s.mean_abs_step_error},
            {"max_abs_step_error", s.max_abs_step_error},
            {"max_memory_error", s.max_memory_error},
            {"regret", s.regret},
            {"rank_correlation", s.rank_correlation}}}};
}

void print_table(const std::vector<ValidationRow>& rows, const ValidationSummary& s) {
  fmt::print("{:<24} {:>12} {:>12} {:>8} {:>12} {:>12} {:>8}\n", "plan", "predicted", "measured", "error", "memory", "measured", "error");
  const auto most = [](const std::vector<std::int64_t>& v) { return v.empty() ? 0 : *std::max_element(v.begin(), v.end()); };
  for (const ValidationRow& r : rows)
    fmt::print("{:<24} {:>12} {:>12} {:>+7.1f}% {:>12} {:>12} {:>7.1f}%\n", r.name, base::to_string(base::Seconds(r.predicted_s)),
               base::to_string(base::Seconds(r.measured_s)), 100 * r.step_error(), show_bytes(most(r.predicted_peak_bytes)),
               show_bytes(most(r.measured_peak_bytes)), 100 * r.memory_error());
  fmt::print("\nstep time: mean |error| {:.1f} %, largest {:.1f} %; regret of the predicted best {:.1f} %; rank correlation {:.2f}; memory: largest error {:.1f} %\n",
             100 * s.mean_abs_step_error, 100 * s.max_abs_step_error, 100 * s.regret, s.rank_correlation, 100 * s.max_memory_error);
}

}  // namespace

base::Result<int> run_validate(const base::Options& options, const Invocation&) {
  const int ranks = static_cast<int>(options.integer("ranks"));
  TRY(const model::ModelSpec model, model::find_model(options.string("model")));
  const std::int64_t sequence = options.has("sequence-length") ? options.integer("sequence-length") : model.max_positions;
  TRY(const model::Precision precision, precision_of(options));
  TRY(const std::vector<NamedPlan> plans, validation_plans(model, options.string("cluster"), ranks, options.integer("global-batch"), sequence, precision,
                                                           static_cast<std::size_t>(options.integer("plans"))));
  TRY(const std::string profile, profile_of_this_machine(options, ranks));
  TRY(const Scene scene, make_scene(options.string("model"), options.string("cluster"), 1, profile, precision, sequence, ranks));
  const ScratchFolder scratch;
  std::vector<ValidationRow> rows;
  for (const NamedPlan& p : plans) {
    TRY(ValidationRow row, predict(p, scene));
    fmt::print(stderr, "training: {}\n", p.name);
    TRY_VOID(measure(p, ranks, static_cast<int>(options.integer("steps")), options.string("device"), scratch, row));
    rows.push_back(std::move(row));
  }
  const ValidationSummary summary = summarize(rows);
  if (options.flag("json")) print_json(to_json(rows, plans, summary));
  else print_table(rows, summary);
  return 0;
}

}  // namespace orrery::cli
