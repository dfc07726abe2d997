#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/json_fwd.h"
#include "base/result.h"
#include "plan/program/program.h"

namespace orrery::plan {

/// One executed operation on one rank. Times are picoseconds from the start of the step.
struct Span {
  std::int32_t rank = 0;
  Stream stream = Stream::kCompute;
  std::string name;      // op name
  std::string category;  // segment kind, collective or "exchange"
  std::string phase;     // "F", "BG", ... or "" for communication
  std::int32_t layer = -1, micro_batch = -1;
  std::uint32_t template_id = 0, template_index = 0;
  std::int64_t start_ps = 0, duration_ps = 0;
  std::int64_t bytes = 0;  // communication
  bool operator==(const Span&) const = default;
};
/// Bytes alive on a rank, at changes.
struct MemorySample {
  std::int32_t rank = 0;
  std::int64_t at_ps = 0;
  std::int64_t bytes = 0;
  bool operator==(const MemorySample&) const = default;
};

/// What simulator and executor both write (schema `orrery.trace/1`, a Chrome trace that Perfetto
/// opens: pid = rank, tid = stream, ts and dur in microseconds; the exact picoseconds stand in
/// args).
struct Timeline {
  std::string origin;  // "predicted" or "measured"
  std::string model, plan_fingerprint, program_fingerprint;
  std::int64_t step_time_ps = 0;
  std::vector<Span> spans;
  std::vector<MemorySample> memory;
  bool operator==(const Timeline&) const = default;
};

/// The order in which a trace is written: spans by (start, rank, stream, template, index, layer,
/// micro-batch), samples by (time, rank); what is equal in all of these stays as it was.
Timeline canonical(Timeline timeline);

std::string to_text(const Timeline& timeline);  // canonical bytes, one event a line
/// Reads the schema strictly: read_timeline(to_json(t)) == canonical(t). Errors: every fault at
/// line:column, also a ts or dur that contradicts the picoseconds.
base::Result<Timeline> read_timeline(const base::Node& root);
base::Result<Timeline> load_timeline(const std::string& path);

}  // namespace orrery::plan
