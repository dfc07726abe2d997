#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "executor/launch/launch.h"
#include "executor/segments/adamw.h"
#include "plan/program/program.h"
#include "plan/program/trace.h"

namespace orrery::executor {

struct RunOptions {
  int steps = 1;
  // steps run before measuring (their losses are reported all the same)
  int warmup = 0;
  std::uint64_t seed = 1;
  AdamW optimizer;
  std::string data;              // path of nanoGPT tokens; empty: built-in text, made-up images
  std::string backend = "auto";  // auto | self | mpi | nccl | stub
  std::string device = "auto";   // auto | cpu | cuda
  bool timeline = false;         // record the spans of the last step
  bool joins = false;  // on a CPU too, what a device does in one launch (plan/program/launches.h)
  bool arena = false;  // what operations write is at fixed places (plan/program/arena.h)
};

struct StepResult {
  int step = 0;
  double loss = 0;     // mean over the global batch's tokens, the same on every rank
  double seconds = 0;  // slowest rank
};

struct RunReport {
  std::vector<StepResult> steps;
  // by stage, maximum over its ranks: counted tensor bytes
  std::vector<std::int64_t> peak_memory_bytes;
  std::vector<std::array<std::int64_t, plan::kBufferCategories>> memory_at_peak;  // by stage
  plan::Timeline timeline;  // gathered on rank 0
  std::string program_fingerprint;
  std::string device;  // "cpu" or "cuda"
};

/// Called on rank 0.
struct Hooks {
  std::function<void(const StepResult&)> on_step;
};

/// Whether the executor implements every segment of the Program, asked before any rank starts.
/// Error: kUnsupported, one diagnostic for each that it does not.
base::Result<void> check_segments(const plan::Program& program);
/// Whether tokens are hidden and predicted where they stand (executor/state/data.h).
bool is_masked(const plan::Program& program);
/// Whether it looks at images, which are made up (executor/state/images.h), and names their class.
bool reads_images(const plan::Program& program);
/// Tokens of a text that a sequence takes: of an encoder-decoder those of both. @pre it reads text.
std::int64_t tokens_of_text(const plan::Program& program);

/// Runs the Program's rank of this process. All ranks first agree on the Program's fingerprint. The
/// report is complete on rank 0. Errors: ranks ≠ world size, a segment without an implementation
/// (kUnsupported), failed communication (kCollective), data files.
base::Result<RunReport> run(const plan::Program& program, const RunOptions& options,
                            const Hooks& hooks = {});

}  // namespace orrery::executor
