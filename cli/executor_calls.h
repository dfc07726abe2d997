#pragma once
/// \file
/// What the commands need of the executor. Two executables have the whole command line: `orrery`
/// links executor_absent.cc and starts without LibTorch, `orrery-executor` beside it links
/// executor_calls.cc.

#include "cli/refuse.h"
#include "cli/train_log.h"
#include "executor/measure/block_timing.h"
#include "executor/measure/rounds.h"
#include "executor/runtime/replay.h"
#include "model/profile.h"
#include "plan/program/program.h"

namespace orrery::cli {

/// Before a command that needs the executor: `orrery` becomes the `orrery-executor` of its own
/// folder, with the same arguments, process and streams. Returns in `orrery-executor` itself, and
/// where there is none: then the calls below refuse. Error: kMissingFeature when it is there but
/// does not start.
Result<void> enter_executor(const std::vector<std::string>& arguments);

/// The end of main: its exit code. `orrery-executor` ends here by quick_exit, without destructors
/// of static objects: those of LibTorch 2.11 with CUDA abort in a process without Python (seen on
/// Ubuntu 24.04: a std::locale freed twice under deregisterOperator).
int leave(int code);

struct TrainJob {
  int steps = 1, warmup = 0;
  std::uint64_t seed = 1;
  double learning_rate = 3e-4;
  std::string data, backend = "auto", device = "auto", trace;
  bool arena = false;       // what operations write at fixed places
  bool show_steps = false;  // a line per step on stderr
};

struct TrainOutcome {
  TrainLog log;         // complete on rank 0
  bool writes = false;  // this process is rank 0
};

/// Whether the executor can run the Program at all, before ranks start. Error: kUnsupported naming
/// the segments that it lacks.
Result<void> check_trainable(const plan::Program& program);

/// Runs this process's rank. Error: kMissingFeature without an executor.
Result<TrainOutcome> train_here(const plan::Program& program, const TrainJob& job);

/// executor::replay(). Error: kMissingFeature without an executor.
Result<executor::RunReport> replay_here(const plan::Program& program,
                                        const executor::ReplayedRank& rank,
                                        const executor::RunOptions& options);

struct CalibrateJob {
  std::string device = "cpu";
  std::string dtype = "fp32";
  int ranks = 1;
  double budget_seconds = 100;
  std::vector<executor::BlockCase> held_out = {};
};
struct CalibrateOutcome {
  model::Profile profile;
  std::vector<executor::BlockTiming> held_out = {};  // of the cases, in order
  bool writes = false;
};
Result<CalibrateOutcome> calibrate_here(const CalibrateJob& job);

struct BlocksOutcome {
  std::vector<executor::BlockTiming> blocks;  // of the cases, in order
  bool writes = false;
};
Result<BlocksOutcome> time_blocks_here(const std::vector<executor::BlockCase>& cases,
                                       const std::string& device, model::Precision precision);

struct RoundsOutcome {
  executor::RoundsReport report;  // complete on rank 0
  bool writes = false;
};
Result<RoundsOutcome> train_in_rounds_here(const std::vector<plan::Program>& programs,
                                           const executor::RoundsOptions& options);

/// A launcher (mpirun, srun, torchrun, our own) has started this process as one of several ranks.
bool launched_as_rank();

/// Starts `ranks` copies of this program on this host; returns the exit code
/// (executor/runtime/run.h).
Result<int> launch(int ranks, const std::vector<std::string>& arguments);

}  // namespace orrery::cli
