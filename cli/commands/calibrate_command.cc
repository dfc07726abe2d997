#include "base/json.h"
#include "cli/block_shapes.h"
#include "cli/command.h"
#include "cli/commands/calibrate_check.h"
#include "cli/executor_calls.h"
#include "cli/inputs.h"
#include "cli/measured/block_errors.h"

namespace orrery::cli {

namespace {

Result<int> run(const Options& options, const Invocation& invocation) {
  if (options.has("check")) return check_profile(options, invocation);
  if (!options.has("out"))
    return refuse(kMissingKey, "--out FILE, or --check PROFILE",
                  "calibrate writes a profile or checks one");
  CalibrateJob job;
  job.device = options.string("device");
  job.dtype = options.string("dtype");
  job.ranks = options.count("ranks");
  job.budget_seconds = options.duration("budget").raw();
  if (options.flag("measure")) job.held_out = held_out_blocks(job.device == "cpu");
  if (!launched_as_rank()) {
    TRY_VOID(check_cores(job.ranks, options));
    if (job.ranks > 1) return launch(job.ranks, invocation.arguments);
  }
  TRY(const CalibrateOutcome outcome, calibrate_here(job));
  if (!outcome.writes) return 0;
  TRY_VOID(base::write_json(options.string("out"), model::to_json(outcome.profile)));
  say("profile written to {}: {} operator points, {} collectives, composition factor {:.3f} "
      "(residual {:.1f} %)\n",
      options.string("out"), outcome.profile.operators.size(), outcome.profile.collectives.size(),
      outcome.profile.composition_factor, 100 * outcome.profile.composition_residual);
  if (job.held_out.empty()) return 0;
  TRY(const auto rows, block_errors(options, job.held_out, outcome.held_out, outcome.profile,
                                    precision_of(options, "dtype")));
  print_blocks(rows);
  return 0;
}

}  // namespace

Command calibrate_command() {
  return {
      {.name = "calibrate",
       .summary = "measure this machine's operations and collectives into a profile, or check one",
       .examples =
           {{"orrery calibrate --out profile.json --ranks 2", "two ranks at once, as in training"},
            {"orrery calibrate --out bf16.json --ranks 1 --dtype bf16", "one rank alone, bf16"},
            {"orrery calibrate --out h200.json --device cuda --ranks 1 --dtype bf16", "a GPU"},
            {"orrery calibrate --check profile.json --measure",
             "what a profile lacks, and how far off it is on blocks of other shapes"}},
       .options =
           {output_option("out", "FILE", "profile to write (orrery.profile/1)"),
            text_option("check", "PROFILE",
                        "instead: say what of a profile is missing or stale and how it hurts"),
            flag_option(
                "measure",
                "also train eight blocks of shapes that are not calibrated, and compare: beside "
                "the calibration, or, with --check, now"),
            integer_option("ranks", "N", {1, 1024}, "processes that measure at the same time", "2"),
            choice_option("device", "D", {"cpu", "cuda"},
                          "what to measure; ranks of several GPUs come from torchrun", "cpu"),
            choice_option("dtype", "T", {"fp32", "bf16"}, "compute type", "fp32"),
            duration_option("budget", {1, 3600}, "time to spend", "100s"), model_option(false),
            cluster_of_machine(), oversubscribe_option(), json_option()}},
      run,
      true};
}

}  // namespace orrery::cli
