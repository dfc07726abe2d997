#pragma once
/// What a simulated step took, and of what.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/numbers.h"
#include "plan/program/program.h"
#include "plan/program/trace.h"
#include "sim/report/energy.h"
#include "sim/report/picture.h"
#include "sim/step/rank_alone.h"
#include "sim/step/time_part.h"

namespace orrery::sim {

struct SimOptions {
  bool timeline = false;      // record spans and memory samples (one rank per class)
  bool picture = false;       // passes, memory by category, links (picture.h)
  bool energy = false;        // @pre MachinePower::of() the cluster (energy.h)
  bool alone = false;         // every class by itself (step/rank_alone.h)
  ComputeTimes compute = {};  // as measured, in place of prices
};

/// Per rank class (pipeline stage); every rank of a class behaves alike.
struct StageReport {
  std::array<std::int64_t, kTimeParts> parts{};  // by TimePart: adds up to the step time exactly
  std::int64_t busy_compute_ps = 0;
  // compute stream idle while only tensor communication of this rank runs
  std::int64_t exposed_tensor_ps = 0;
  std::int64_t exposed_data_ps = 0;
  std::int64_t exposed_pipeline_ps = 0;
  std::int64_t idle_ps = 0;            // bubble: nothing runs
  std::int64_t recompute_ps = 0;       // part of busy
  std::int64_t optimizer_ps = 0;       // part of busy
  std::int64_t peak_memory_bytes = 0;  // static peak (issue order) + context
  std::int64_t host_bytes = 0;         // in the host's memory for each rank, at most
  std::array<std::int64_t, plan::kBufferCategories> memory_at_peak{};
  std::int64_t timeline_peak_bytes = 0;  // highest seen on the simulated clock
};

/// Schema `orrery.report/1`, docs/schemas.md. Every field is what `predicted` in --json shows.
struct SimReport {
  std::int64_t step_time_ps = 0;
  double samples_per_s = 0;
  double tokens_per_s = 0;
  int ranks = 0;                      // of the world
  double model_flops_per_s_rank = 0;  // mfu x peak
  double mfu = 0;                     // 3 x forward matmul FLOPs / (step time x peak x ranks)
  double bubble_fraction = 0;         // mean over ranks of idle / step
  double exposed_communication_fraction = 0;
  std::vector<StageReport> stages;
  std::uint64_t events = 0;
  std::int64_t simulated_micro_batches = 0;  // extrapolated_report.h; 0: all
  std::string fingerprint;                   // over all start and end times in canonical order
  plan::Timeline timeline;                   // when asked
  Picture picture;                           // when asked
  std::vector<RankAlone> alone;              // [class] when asked
  std::optional<StepEnergy> energy;          // when asked
};

/// As documents have it.
inline double seconds(std::int64_t ps) { return real(ps) / 1e12; }

base::Json to_json(const SimReport& report);
/// The table a person reads.
std::string to_text(const SimReport& report);

}  // namespace orrery::sim
