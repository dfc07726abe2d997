#include <algorithm>

#include "cli/command.h"
#include "cli/executor_calls.h"
#include "cli/inputs.h"
#include "cli/text/show.h"
#include "plan/lowering/lower.h"

namespace orrery::cli {

using base::OptionType;

namespace {

Result<void> check_ranks(int ranks, const Plan& plan) {
  if (ranks == plan.world_size()) return {};
  return refuse(
      kInconsistent,
      fmt::format("use --ranks {}, or plan again for {} devices", plan.world_size(), ranks),
      "--ranks {}, but the plan is for {} ranks", ranks, plan.world_size());
}

TrainJob job_of(const Options& o) {
  TrainJob job;
  job.steps = o.count("steps");
  job.warmup = std::min(o.count("warmup"), job.steps - 1);
  job.seed = static_cast<std::uint64_t>(o.integer("seed"));
  job.learning_rate = o.real("learning-rate");
  job.data = o.string_or("data", "");
  job.backend = o.string("backend");
  job.device = o.string("device");
  job.trace = o.string_or("trace", "");
  job.arena = o.flag("arena");
  job.show_steps = !o.flag("json") && !o.flag("quiet");
  return job;
}

Result<int> run(const Options& options, const Invocation& invocation) {
  TRY(const Plan plan, plan::load_plan(options.string("plan")));
  TRY(ModelSpec base, model::find_model(plan.model));
  TRY(const ModelSpec model, model::with_adapter(std::move(base), plan.adapter));
  TRY(const plan::Program program, plan::lower(plan, model));
  const bool alone = !launched_as_rank();
  if (alone) {
    const int ranks = options.has("ranks") ? options.count("ranks") : plan.world_size();
    if (options.string("backend") != "stub") {
      TRY_VOID(check_ranks(ranks, plan));
      TRY_VOID(check_trainable(program));
      TRY_VOID(check_cores(ranks, options));
      if (ranks > 1) return launch(ranks, invocation.arguments);
    }
  }
  const TrainJob job = job_of(options);
  TRY(const TrainOutcome outcome, train_here(program, job));
  if (!outcome.writes) return 0;
  if (options.has("log")) TRY_VOID(base::write_json(options.string("log"), to_json(outcome.log)));
  if (options.flag("quiet")) return 0;
  if (options.flag("json")) {
    print_json(to_json(outcome.log));
    return 0;
  }
  fmt::print("{}\nstep time {} (median of {}), last loss {:.6f}\n", describe(plan),
             base::to_string(base::Seconds(outcome.log.step_time_s)), job.steps - job.warmup,
             outcome.log.steps.back().loss);
  for (std::size_t s = 0; s < outcome.log.peak_memory_bytes.size(); ++s)
    fmt::print("stage {}: peak {} per rank\n", s, show_bytes(outcome.log.peak_memory_bytes[s]));
  return 0;
}

}  // namespace

Command train_command() {
  return {
      {.name = "train",
       .summary = "train with a plan on real devices and report what was measured",
       .examples = {{"orrery train --plan plan.json --ranks 2 --steps 20 --trace measured.json",
                     "two processes on this machine"},
                    {"mpirun -np 8 orrery train --plan plan.json --steps 100",
                     "ranks from a launcher (also srun, torchrun)"}},
       .options =
           {required(text_option("plan", "FILE", "plan (orrery.plan/1)")),
            integer_option(
                "ranks", "N", {1, 1 << 16},
                "processes to start here (default: the plan's world size; not under a launcher)"),
            integer_option("steps", "K", {1}, "optimizer steps", "10"),
            integer_option("warmup", "K", {0}, "first steps left out of the step time", "1"),
            integer_option("seed", "N", {0}, "seed of parameters and of the order of data", "1"),
            {.name = "learning-rate",
             .value_name = "X",
             .type = OptionType::kDouble,
             .default_value = "0.0003",
             .min = 0,
             .max = 10,
             .help = "AdamW learning rate"},
            text_option("data", "FILE",
                        "nanoGPT token file (default: a small built-in text; images are made up)"),
            choice_option("backend", "B", {"auto", "self", "mpi", "nccl", "stub"},
                          "transport between ranks", "auto"),
            choice_option("device", "D", {"auto", "cpu", "cuda"}, "where tensors live", "auto"),
            flag_option("arena",
                        "write what operations make at fixed places of one block of memory "
                        "(docs/models/memory.md)"),
            output_option("trace", "FILE",
                          "write the measured timeline of the last step (orrery.trace/1)"),
            output_option("log", "FILE", "write the train log (orrery.train/1)"),
            {.name = "quiet",
             .type = OptionType::kFlag,
             .help = "print nothing but errors",
             .hidden = true},
            oversubscribe_option(),
            json_option()}},
      run,
      true};
}

}  // namespace orrery::cli
