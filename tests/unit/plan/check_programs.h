#pragma once
/// Small Programs that check accepts, and places in them to plant faults in.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "plan/check/check.h"
#include "tests/unit/plan/mutant.h"
#include "tests/unit/plan/small_program.h"

namespace orrery::plan {

inline std::string text_of(const std::vector<Fault>& faults) {
  std::string text;
  for (const Fault& f : faults)
    text += fmt::format("\nstage {} op {}: {}", f.stage, f.op, f.message);
  return text;
}

#define EXPECT_CAUGHT(mutant, fault) \
  EXPECT_TRUE((mutant).has(fault)) << "found instead:" << text_of((mutant).faults())

/// tp 2, dp 2, two stages, four micro-batches, untied: every kind of operation but gathers of
/// weights.
inline Program pipeline(Schedule schedule = Schedule::k1F1B) {
  return small_program(small_model(true),
                       {.tp = 2, .pp = 2, .dp = 2, .zero = 1, .schedule = schedule});
}
inline Program data_parallel(int zero = 0) {
  return small_program(small_model(), {.dp = 2, .zero = zero});
}

inline bool is_exchange(const OpInstance& o, Stream stream) {
  return o.op->kind == OpKind::kExchange && o.op->stream == stream;
}
inline std::size_t exchange(const Mutant& m, std::size_t c, Stream stream) {
  return m.first(c, [stream](const OpInstance& o) { return is_exchange(o, stream); });
}
inline std::size_t gradient_reduction(const Mutant& m, std::size_t c) {
  return m.first(c, [](const OpInstance& o) {
    return o.op->kind == OpKind::kCollective && o.op->stream == Stream::kData &&
           o.op->collective != Collective::kAllGather;
  });
}
inline bool is_segment(const Program& p, const OpInstance& o, model::SegmentKind kind) {
  return o.op->kind == OpKind::kCompute && p.segments[o.op->segment].kind == kind;
}

}  // namespace orrery::plan
