#pragma once
/// What ranks send to rank 0 after a run, and how it becomes a RunReport.
#include <string>
#include <vector>

#include "base/result.h"
#include "executor/runtime/run.h"
#include "executor/state/allocator.h"
#include "plan/program/trace.h"

namespace orrery::executor {

struct RankReport {
  int stage = 0;
  MemoryCount memory;
  std::vector<plan::Span> spans;
  std::vector<plan::MemorySample> samples;
};

/// One line of JSON.
std::string to_text(const RankReport& report);
/// Memory by stage (the rank with the highest peak) and one timeline of all ranks, by rank and
/// start. Error: kParse (a damaged text).
base::Result<void> merge(const std::vector<std::string>& texts, const plan::Program& program,
                         RunReport& report);

}  // namespace orrery::executor
