#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "plan/program.h"
#include "plan/trace.h"

namespace orrery::executor {

struct AdamW {
  double learning_rate = 3e-4, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
};

struct RunOptions {
  int steps = 1;
  int warmup = 0;                    // steps run before measuring (their losses are reported all the same)
  std::uint64_t seed = 1;
  AdamW optimizer;
  std::string data;                  // path of nanoGPT tokens; empty: built-in text corpus
  std::string backend = "auto";      // auto | self | mpi | nccl | stub
  std::string device = "auto";       // auto | cpu | cuda
  bool timeline = false;             // record the spans of the last step
};

struct StepResult {
  int step = 0;
  double loss = 0;                   // mean over the global batch's tokens, the same on every rank
  double seconds = 0;                // slowest rank
};

struct RunReport {
  std::vector<StepResult> steps;
  std::vector<std::int64_t> peak_memory_bytes;   // by stage, maximum over its ranks: counted tensor bytes
  std::vector<std::array<std::int64_t, plan::kBufferCategories>> memory_at_peak;  // by stage
  plan::Timeline timeline;           // gathered on rank 0
  std::string program_fingerprint;
};

/// Called on rank 0.
struct Hooks {
  std::function<void(const StepResult&)> on_step;
};

/// This process's place among the ranks: from RANK | OMPI_COMM_WORLD_RANK | PMI_RANK | SLURM_PROCID and their kin; one rank alone if none.
struct Launch {
  int rank = 0, world_size = 1, local_rank = 0;
  std::string source;                // which environment said so
};
base::Result<Launch> detect_launch();

/// Whether the executor implements every segment of the Program, asked before any rank starts. Error: kUnsupported, one diagnostic for each
/// that it does not.
base::Result<void> check_segments(const plan::Program& program);

/// Runs the Program's rank of this process. All ranks first agree on the Program's fingerprint. The report is complete on rank 0.
/// Errors: ranks ≠ world size, a segment without an implementation (kUnsupported), failed communication (kCollective), data files.
base::Result<RunReport> run(const plan::Program& program, const RunOptions& options, const Hooks& hooks = {});

/// Starts `ranks` copies of this program (`arguments`) on this host, waits, forwards their output; when one fails or is killed, ends all
/// within seconds, prints one root-cause block naming the rank, returns exit code 3.
base::Result<int> launch_local(int ranks, const std::vector<std::string>& arguments);

}  // namespace orrery::executor
