/// executor_calls.h in `orrery-executor`, which has the executor.
#include "cli/executor_calls.h"

#include <cstdio>
#include <cstdlib>

#include "base/file.h"
#include "cli/block_shapes.h"
#include "executor/measure/calibrate.h"
#include "executor/runtime/run.h"
#include "plan/program/launches.h"

namespace orrery::cli {

Result<void> enter_executor(const std::vector<std::string>&) { return {}; }

int leave(int code) {
  std::fflush(nullptr);
  std::quick_exit(code);
}

bool launched_as_rank() {
  const auto launch = executor::detect_launch();
  return launch && !launch->source.empty() && launch->world_size > 1;
}

Result<int> launch(int ranks, const std::vector<std::string>& arguments) {
  return executor::launch_local(ranks, arguments);
}

Result<void> check_trainable(const plan::Program& program) {
  return executor::check_segments(program);
}

Result<TrainOutcome> train_here(const plan::Program& program, const TrainJob& job) {
  TRY(const executor::Launch place, executor::detect_launch());
  executor::RunOptions options;
  options.steps = job.steps - job.warmup;  // the executor counts warm-up steps apart
  options.warmup = job.warmup;
  options.seed = job.seed;
  options.optimizer.learning_rate = job.learning_rate;
  options.data = job.data;
  options.backend = job.backend;
  options.device = job.device;
  options.timeline = !job.trace.empty();
  options.arena = job.arena;
  executor::Hooks hooks;
  if (job.show_steps)
    hooks.on_step = [](const executor::StepResult& s) {
      say("step {:>4}  loss {:.6f}  {:.1f} ms\n", s.step, s.loss, 1e3 * s.seconds);
    };
  TRY(const executor::RunReport report, executor::run(program, options, hooks));
  TrainOutcome out;
  out.writes = place.rank == 0;
  if (!out.writes) return out;
  out.log.model = program.model;
  out.log.plan_fingerprint = program.plan_fingerprint;
  out.log.program_fingerprint = report.program_fingerprint;
  out.log.ranks = program.world_size;
  std::vector<double> timed;
  for (const executor::StepResult& s : report.steps) {
    out.log.steps.push_back({s.step, s.loss, s.seconds});
    if (s.step >= job.warmup) timed.push_back(s.seconds);
  }
  out.log.step_time_s = median(std::move(timed));
  out.log.peak_memory_bytes = report.peak_memory_bytes;
  for (const plan::RankClass& stage : program.classes)
    out.log.launches.push_back(plan::launch_count(program, stage));
  if (!job.trace.empty())
    TRY_VOID(base::write_file_atomic(job.trace, plan::to_text(report.timeline)));
  return out;
}

Result<executor::RunReport> replay_here(const plan::Program& program,
                                        const executor::ReplayedRank& rank,
                                        const executor::RunOptions& options) {
  return executor::replay(program, rank, options);
}

Result<CalibrateOutcome> calibrate_here(const CalibrateJob& job) {
  TRY(const executor::Launch place, executor::detect_launch());
  executor::CalibrateOptions options;
  options.device = job.device;
  options.dtype = job.dtype;
  options.ranks = job.ranks;
  options.budget_seconds = job.budget_seconds;
  const bool cpu = job.device == "cpu";
  const std::vector<const char*> focus =
      cpu ? std::vector{"gpt2-tiny", "llama-tiny"}
          : std::vector{"llama-2-7b", "gpt2-xl", "llama-3-8b", "gpt2"};
  for (const char* name : focus) {
    TRY(model::ModelSpec spec, model::find_model(name));
    // layers are alike, and a step of a few fits beside its states
    if (!cpu) spec.layers = std::min<std::int64_t>(spec.layers, 4);
    options.focus.push_back(std::move(spec));
  }
  if (cpu) options.blocks = blocks_of(kCalibratedOnCpu);
  options.held_out = job.held_out;
  if (place.rank == 0)
    options.on_progress = [](double fraction, const std::string& what) {
      say("calibrate {:3.0f} %  {}\n", 100 * fraction, what);
    };
  TRY(executor::Calibrated calibrated, executor::calibrate(options));
  return CalibrateOutcome{std::move(calibrated.profile), std::move(calibrated.held_out),
                          place.rank == 0};
}

Result<BlocksOutcome> time_blocks_here(const std::vector<executor::BlockCase>& cases,
                                       const std::string& device, model::Precision precision) {
  TRY(const executor::Launch place, executor::detect_launch());
  TRY(std::vector<executor::BlockTiming> blocks, executor::time_blocks(cases, device, precision));
  return BlocksOutcome{std::move(blocks), place.rank == 0};
}

Result<RoundsOutcome> train_in_rounds_here(const std::vector<plan::Program>& programs,
                                           const executor::RoundsOptions& options) {
  TRY(const executor::Launch place, executor::detect_launch());
  TRY(executor::RoundsReport report, executor::run_rounds(programs, options));
  return RoundsOutcome{std::move(report), place.rank == 0};
}

}  // namespace orrery::cli
