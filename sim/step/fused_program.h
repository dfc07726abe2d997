#pragma once
/// \file
/// A Program whose operations stand in for many, for when only the time of a step is asked for.
///
/// A *run* is a stretch of operations that compute on the compute stream of a template, with
/// nothing of another stream in between, of which
///
///     only the first looks at a buffer that other operations touch too    (stream_refs.h: the
///     first only the last leaves it                                   access of a turn, the first
///     change)
///
/// So nothing inside a run waits for another stream, and no other stream waits for anything but its
/// end. One operation that takes as long as all of them, and touches what they touch of buffers
/// that other operations touch too, starts with the first and ends with the last. Frees change no
/// times (expand.h) and are left out. Where the host is late the last run of a template waits for
/// it, as its last operation would. @pre communication does not slow compute
/// (CostModel::overlap_slowdown_ppm), and overlaps it. Example: a layer's forward on one device is
/// one operation instead of ten.
#include <cstdint>
#include <vector>

#include "plan/program/program.h"

namespace orrery::sim {

struct FusedProgram {
  plan::Program program;  // a run is one operation of a segment of its own, from first_run on
  std::uint32_t first_run = 0;
  std::vector<std::vector<plan::Op>> runs;  // [segment - first_run]
  const plan::Program* whole = nullptr;     // what it was made of, which must outlive it
  /// Null: the operation is itself.
  [[nodiscard]] const std::vector<plan::Op>* run_of(const plan::Op& op) const {
    return op.kind == plan::OpKind::kCompute && op.segment.raw() >= first_run
               ? &runs[op.segment.raw() - first_run]
               : nullptr;
  }
};

FusedProgram fuse(const plan::Program& program);
/// Without runs: of any communication.
FusedProgram without_frees(const plan::Program& program);

}  // namespace orrery::sim
