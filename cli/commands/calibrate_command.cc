#include <cstdio>

#include <fmt/format.h>

#include "base/json.h"
#include "cli/block_shapes.h"
#include "cli/command.h"
#include "cli/commands/block_errors.h"
#include "cli/commands/calibrate_check.h"
#include "cli/executor_calls.h"
#include "cli/inputs.h"

namespace orrery::cli {

using base::OptionType;

const base::CommandSpec& calibrate_spec() {
  static const base::CommandSpec kSpec{
      .name = "calibrate",
      .summary = "measure this machine's operations and collectives into a profile, or check one",
      .examples =
          {{"orrery calibrate --out profile.json --ranks 2", "two ranks at once, as in training"},
           {"orrery calibrate --out bf16.json --ranks 1 --dtype bf16", "one rank alone, bf16"},
           {"orrery calibrate --out h200.json --device cuda --ranks 1 --dtype bf16", "a GPU"},
           {"orrery calibrate --check profile.json --measure",
            "what a profile lacks, and how far off it is on blocks of other shapes"}},
      .options = {
          {.name = "out", .value_name = "FILE", .help = "profile to write (orrery.profile/1)"},
          {.name = "check",
           .value_name = "PROFILE",
           .help = "instead: say what of a profile is missing or stale and how it hurts"},
          {.name = "measure",
           .type = OptionType::kFlag,
           .help = "also train eight blocks of shapes that are not calibrated, and compare: beside "
                   "the calibration, or, with --check, now"},
          integer_option("ranks", "N", {1, 1024}, "processes that measure at the same time", "2"),
          {.name = "device",
           .value_name = "D",
           .default_value = "cpu",
           .choices = {"cpu", "cuda"},
           .help = "what to measure; ranks of several GPUs come from torchrun"},
          {.name = "dtype",
           .value_name = "T",
           .default_value = "fp32",
           .choices = {"fp32", "bf16"},
           .help = "compute type"},
          {.name = "budget",
           .value_name = "TIME",
           .type = OptionType::kDuration,
           .default_value = "100s",
           .min = 1,
           .max = 3600,
           .help = "time to spend"},
          model_option(false),
          cluster_of_machine(),
          json_option()}};
  return kSpec;
}

base::Result<int> run_calibrate(const base::Options& options, const Invocation& invocation) {
  if (options.has("check")) return check_profile(options, invocation);
  if (!options.has("out")) {
    auto error =
        base::make_error(base::ErrorCode::kMissingKey, "calibrate writes a profile or checks one");
    error.hint = "--out FILE, or --check PROFILE";
    return base::fail(std::move(error));
  }
  CalibrateJob job;
  job.device = options.string("device");
  job.dtype = options.string("dtype");
  job.ranks = options.count("ranks");
  job.budget_seconds = options.duration("budget").raw();
  if (options.flag("measure")) job.held_out = held_out_blocks(job.device == "cpu");
  if (job.ranks > 1 && !launched_as_rank()) return launch(job.ranks, invocation.arguments);
  TRY(const CalibrateOutcome outcome, calibrate_here(job));
  if (!outcome.writes) return 0;
  TRY_VOID(base::write_json(options.string("out"), model::to_json(outcome.profile)));
  fmt::print(stderr,
             "profile written to {}: {} operator points, {} collectives, composition factor {:.3f} "
             "(residual {:.1f} %)\n",
             options.string("out"), outcome.profile.operators.size(),
             outcome.profile.collectives.size(), outcome.profile.composition_factor,
             100 * outcome.profile.composition_residual);
  if (job.held_out.empty()) return 0;
  TRY(const auto rows,
      block_errors(options, job.held_out, outcome.held_out, outcome.profile,
                   job.dtype == "bf16" ? model::Precision::kBFloat16 : model::Precision::kFloat32));
  print_blocks(rows);
  return 0;
}

}  // namespace orrery::cli
