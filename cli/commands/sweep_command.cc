#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>

#include "base/file.h"
#include "base/json.h"
#include "base/numbers.h"
#include "base/process.h"
#include "cli/command.h"
#include "cli/html/page.h"
#include "cli/plan_question.h"
#include "cli/run_options.h"
#include "cli/tables/point_store.h"
#include "cli/tables/sweep_report.h"
#include "cli/tables/sweep_smallest.h"
#include "cli/text/show.h"

namespace orrery::cli {

namespace {

/// Many points: answers rather than proofs. On Llama-3-70B the answers of 2 and 20 million are the
/// same, the second are proven closer.
constexpr const char* kStates = "2000000";

std::vector<base::OptionSpec> run_and_failures() {
  return joined(
      {run_options(), failure_options("mean time between failures of one device (with --tokens)")});
}

/// Options that a held plan leaves open.
std::vector<base::OptionSpec> held_options() {
  return joined({{model_option(false), cluster_option(false), hosts_option(), memory_option()},
                 price_options(),
                 run_and_failures()});
}

std::vector<base::OptionSpec> searched_options() {
  return joined({question_options(true, kStates), run_and_failures()});
}

Result<SweepBase> base_of(const Options& o) {
  SweepBase base{
      .options = o.has("plan") ? held_options() : searched_options(), .given = o, .held = {}};
  if (!o.has("plan")) return base;
  for (const base::OptionSpec& option : question_options(false, kStates)) {
    const bool open = std::ranges::count(base.options, option.name, &base::OptionSpec::name) > 0;
    if (o.given(option.name) && !open)
      return refuse(kUsage, "leave one of them out", "--{} beside --plan, which states it",
                    option.name);
  }
  TRY(base.held, plan::load_plan(o.string("plan")));
  return base;
}

/// "12 of 64 points", on a terminal, after half a second.
class PointProgress {
 public:
  explicit PointProgress(std::size_t total) : total_(total) {}
  void one_more() {
    const std::lock_guard lock(mutex_);
    ++done_;
    if (!terminal_ || watch_.seconds() < 0.5) return;
    say("\r{} of {} points, {:.0f} s   ", done_, total_, watch_.seconds());
    std::fflush(stderr);
    shown_ = true;
  }
  void clear() const {
    if (shown_) say("\r{:60}\r", "");
  }

 private:
  std::mutex mutex_;
  Stopwatch watch_;
  std::size_t total_, done_ = 0;
  bool terminal_ = isatty(STDERR_FILENO) != 0, shown_ = false;
};

std::vector<PointResult> run_points(const SweepBase& base, const std::vector<Assignment>& points,
                                    PointStore* store, int threads) {
  std::vector<PointResult> results(points.size());
  PointProgress progress(points.size());
  const auto run = [&](std::size_t i) {
    results[i] = run_point(base, points[i], store);
    progress.one_more();
  };
  base::run_in_parallel(points.size(), threads, [&] { return run; });
  progress.clear();
  return results;
}

/// 1: a point is faulty; 2: nothing fits anywhere, or no run meets its limits.
int exit_code_of(const std::vector<PointResult>& results) {
  if (std::ranges::count(results, PointStatus::kError, &PointResult::status) > 0) return 1;
  const bool some = std::ranges::any_of(results, [](const PointResult& r) {
    return r.status == PointStatus::kOk && r.met.value_or(true);
  });
  return some ? 0 : 2;
}

/// The document, and what the page says above it.
base::Json page_data(const Options& o, const SweepBase& base, const Sweep& sweep) {
  base::Json data = to_json(sweep);
  const auto varied = [&](const std::string& name) {
    return std::ranges::any_of(
        sweep.axes, [&](const Axis& axis) { return std::ranges::count(axis.names, name) > 0; });
  };
  const auto words = [&](const std::string& name, const std::string& held) {
    if (varied(name)) return "several " + name + "s";
    return o.given(name) ? o.text(name) : held;
  };
  data["title"] = fmt::format(
      "{} on {}", words("model", base.held ? base.held->model : ""),
      words("cluster", base.held ? base.held->cluster : o.string_or("gpus", "many GPUs")));
  std::string given;
  for (const base::OptionSpec& option : base.options)
    if (o.given(option.name) && !varied(option.name))
      given += fmt::format("--{} {}  ", option.name, o.text(option.name));
  for (const std::string& text : o.strings("vary")) given += fmt::format("\n--vary {}", text);
  if (o.given("tokens")) data["run_tokens"] = o.text("tokens");
  data["given"] = base.held ? one_line(*base.held) + "\n" + given : given;
  return data;
}

Result<int> run(const Options& o, const Invocation&) {
  Sweep sweep;
  TRY_VOID(check_run_options(o));
  TRY_VOID(check_company(o, {{"mtbf", "tokens"}, {"smallest", "deadline", "budget"}}));
  TRY(const SweepBase base, base_of(o));
  TRY(sweep.axes, parse_axes(o.strings("vary")));
  TRY_VOID(check_axes(base, sweep.axes));
  TRY(sweep.points, points_of(sweep.axes));
  std::optional<PointStore> store;
  if (o.has("store")) {
    TRY(store, PointStore::open(o.string("store")));
  }
  const int threads = threads_of(o);
  const auto evaluate = [&](const std::vector<Assignment>& points) {
    return run_points(base, points, store ? &*store : nullptr, threads);
  };
  if (o.flag("smallest")) {
    const SmallestLimits limits{o.large_count("tokens").raw(),
                                o.has("deadline") ? o.duration("deadline") : base::Seconds()};
    TRY_VOID(find_smallest(sweep, limits, as_index(threads), evaluate));
  } else {
    sweep.results = evaluate(sweep.points);
  }
  if (o.has("out")) TRY_VOID(base::write_file_atomic(o.string("out"), to_csv(sweep)));
  if (o.has("html")) {
    TRY(const std::string page, page_of("sweep", page_data(o, base, sweep)));
    TRY_VOID(base::write_file_atomic(o.string("html"), page));
  }
  if (o.flag("json"))
    print_json(to_json(sweep));
  else
    fmt::print("{}", to_text(sweep));
  if (o.has("out")) say("table written to {}\n", o.string("out"));
  if (o.has("html")) say("page written to {}: open it in a browser\n", o.string("html"));
  return exit_code_of(sweep.results);
}

}  // namespace

Command sweep_command() {
  base::OptionSpec vary = required(text_option(
      "vary", "NAME=V,V,...",
      "an axis: an option above or PART.FIELD of --set, and its values; 1..512 doubles, 8..64:8 "
      "adds; hosts:global-batch=1:64,2:128 varies two together (docs/commands.md)"));
  vary.repeated = true;
  return {
      {.name = "sweep",
       .summary = "find the fastest plan at every point of a grid, or hold one plan there",
       .examples = {{"orrery sweep --model llama-3-70b --cluster dgx-h100 --sequence-length "
                     "8192 --global-batch 1024 --vary hosts=1..512",
                     "how it scales from 8 to 4,096 GPUs"},
                    {"orrery sweep --model llama-3-70b --hosts 16 --sequence-length 8192 "
                     "--global-batch 1024 --vary cluster=dgx-a100,dgx-h100,dgx-b200 --vary "
                     "ib.bandwidth=1x,2x",
                     "which of three clusters, and whether twice the network helps"},
                    {"orrery sweep --model llama-3-70b --cluster dgx-h100 --sequence-length "
                     "8192 --global-batch 2048 --vary hosts=1..512:1 --tokens 15T --deadline "
                     "60d --smallest",
                     "how many GPUs for 15T tokens in 60 days"},
                    {"orrery sweep --plan plan.json --vary nvlink.bandwidth=0.5x,1x,2x",
                     "what links do to a plan that stays"}},
       .options = joined(
           {question_options(false, kStates),
            run_and_failures(),
            {vary, text_option("plan", "FILE", "hold this plan instead of searching"),
             flag_option(
                 "smallest",
                 "try hosts upwards, and end at the first whose run meets its deadline and budget"),
             output_option("store", "FILE",
                           "keep results of finished points (SQLite): a sweep that was stopped "
                           "goes on where it was"),
             threads_option("points"), output_option("out", "FILE.csv", "write the table as CSV"),
             output_option("html", "FILE",
                           "write a page to look at: scaling, front, map, all points"),
             json_option()}})},
      run};
}

}  // namespace orrery::cli
