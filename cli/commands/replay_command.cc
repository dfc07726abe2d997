#include <algorithm>
#include <utility>

#include "base/file.h"
#include "base/numbers.h"
#include "cli/command.h"
#include "cli/executor_calls.h"
#include "cli/inputs.h"
#include "cli/measured/replay_report.h"
#include "cli/text/show.h"
#include "plan/lowering/lower.h"
#include "plan/program/memory.h"
#include "sim/simulate.h"

namespace orrery::cli {

namespace {

/// The ranks to replay: the one of --rank, or the first of each class.
Result<std::vector<int>> ranks_of(const Options& o, const plan::Program& program) {
  std::vector<int> ranks;
  if (!o.has("rank")) {
    for (const plan::RankClass& k : program.classes) ranks.push_back(k.first_rank);
    return ranks;
  }
  const int rank = o.count("rank");
  if (rank >= program.world_size)
    return refuse(kOutOfRange,
                  fmt::format("--rank 0 to {}; without it every rank class is replayed",
                              program.world_size - 1),
                  "--rank {}, but the plan is for {} ranks", rank, program.world_size);
  return std::vector{rank};
}

executor::RunOptions run_options_of(const Options& o) {
  executor::RunOptions run;
  run.steps = o.count("steps");
  run.warmup = 1;
  run.device = o.string("device");
  run.timeline = true;
  return run;
}

/// One rank, replayed.
struct Replay {
  ReplayRow row;
  std::string device;
  plan::Timeline timeline;
};

/// What a replay counts: the Program's buffers and the tables of rotary attention, not the
/// framework's own bytes.
double counted_bytes(const plan::Program& program, const plan::RankClass& k,
                     const CostModel& cost) {
  const auto& profile = cost.profile();
  const std::int64_t framework = profile ? profile->context_bytes : 0;
  return real(plan::static_memory(program, k).peak_bytes + cost.context_bytes() - framework);
}

Result<Replay> replay_rank(const plan::Program& program, const CostModel& cost, int rank,
                           const sim::RankAlone& alone, const executor::RunOptions& options) {
  const plan::RankClass& k = program.class_of(rank);
  say("replaying rank {} of {}, stage {}\n", rank, program.world_size, k.stage);
  TRY(executor::RunReport run, replay_here(program, {.rank = rank, .op_ps = alone.op_ps}, options));
  std::vector<double> seconds;
  for (const executor::StepResult& s : run.steps)
    if (s.step >= options.warmup) seconds.push_back(s.seconds);
  Replay replay;
  replay.row = {.stage = k.stage,
                .first_rank = k.first_rank,
                .ranks = k.count,
                .rank = rank,
                .compute_s = {sim::seconds(alone.compute_ps), compute_seconds(run.timeline.spans)},
                .communication_s = sim::seconds(alone.communication_ps),
                .step_s = {sim::seconds(alone.step_ps), median(std::move(seconds))},
                .peak_bytes = {counted_bytes(program, k, cost),
                               real(run.peak_memory_bytes[as_index(k.stage)])}};
  replay.device = run.device;
  replay.timeline = std::move(run.timeline);
  return replay;
}

/// Those of all ranks as one timeline.
void add_timeline(plan::Timeline from, plan::Timeline& to) {
  from.step_time_ps = std::max(from.step_time_ps, to.step_time_ps);
  std::ranges::move(to.spans, std::back_inserter(from.spans));
  std::ranges::move(to.memory, std::back_inserter(from.memory));
  to = std::move(from);
}

/// Replays the ranks one after another; all their spans go to `timeline`.
Result<ReplayReport> replay_ranks(const Options& o, const plan::Program& program,
                                  const CostModel& cost, const std::vector<int>& ranks,
                                  plan::Timeline& timeline) {
  TRY(const sim::SimReport predicted, sim::simulate(program, cost, {.alone = true}));
  const executor::RunOptions run = run_options_of(o);
  ReplayReport report{.device = {},
                      .steps = run.steps,
                      .rows = {},
                      .predicted_step_s = sim::seconds(predicted.step_time_ps),
                      .fed_back = {}};
  sim::SimOptions again;
  for (const int rank : ranks) {
    const auto k = as_u32(&program.class_of(rank) - program.classes.data());
    TRY(Replay replay, replay_rank(program, cost, rank, predicted.alone[k], run));
    report.device = replay.device;
    report.rows.push_back(replay.row);
    add_compute_times(replay.timeline.spans, k, again.compute);
    add_timeline(std::move(replay.timeline), timeline);
  }
  if (report.device == "cpu" && cost.overlaps())
    say("on a CPU communication does not overlap computation, as it does in the prediction\n");
  if (ranks.size() < program.classes.size()) return report;
  TRY(const sim::SimReport fed_back, sim::simulate(program, cost, again));
  report.fed_back = {sim::seconds(fed_back.step_time_ps), fed_back.exposed_communication_fraction,
                     fed_back.bubble_fraction};
  return report;
}

Result<int> run(const Options& options, const Invocation&) {
  TRY(const Plan plan, plan::load_plan(options.string("plan")));
  TRY(const Scene scene, scene_of(options, plan));
  TRY_VOID(check_ranks(plan, scene.cost.topology()));
  if (model::format_of(plan.precision) != model::Format::kNone)
    return refuse(ErrorCode::kUnsupported, "plan again with --precision bf16 or fp32",
                  "the executor emulates {}: its times are not a device's",
                  model::to_string(plan.precision));
  TRY(const plan::Program program, plan::lower(plan, scene.model));
  TRY(const std::vector<int> ranks, ranks_of(options, program));
  TRY_VOID(check_trainable(program));
  plan::Timeline timeline;
  TRY(const ReplayReport report, replay_ranks(options, program, scene.cost, ranks, timeline));
  const Json document = to_json(report, plan);
  if (options.has("trace"))
    TRY_VOID(base::write_file_atomic(options.string("trace"), plan::to_text(timeline)));
  if (options.has("log")) TRY_VOID(base::write_json(options.string("log"), document));
  if (options.flag("json")) {
    print_json(document);
    return 0;
  }
  fmt::print("{}\nprices: {}\n{}", describe(plan), describe_origin(scene.cost), to_text(report));
  return 0;
}

}  // namespace

Command replay_command() {
  return {
      {.name = "replay",
       .summary = "run the ranks of a plan of any size one by one on this machine's device, with "
                  "communication as predicted",
       .examples = {{"orrery replay --plan plan.json --device cuda --profile h200-1gpu-bf16",
                     "every rank class of the plan, one after another on one GPU"},
                    {"orrery replay --plan plan.json --rank 512", "one rank"}},
       .options = joined(
           {{required(text_option("plan", "FILE", "plan (orrery.plan/1)")),
             integer_option("rank", "R", {0, 1 << 20},
                            "rank to replay (default: the first of every rank class)"),
             integer_option("steps", "K", {1, 100000}, "steps timed, after one to warm up", "3"),
             choice_option("device", "D", {"auto", "cpu", "cuda"}, "where tensors live", "auto"),
             model_option(false), cluster_option(false), hosts_option()},
            price_options(),
            {output_option("trace", "FILE",
                           "write the replayed timelines of the last step (orrery.trace/1)"),
             output_option("log", "FILE", "write the report (orrery.replay/1)"), json_option()}})},
      run,
      true};
}

}  // namespace orrery::cli
