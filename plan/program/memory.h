#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "plan/program/expand.h"

namespace orrery::plan {

/// Bytes alive on one rank, by category, at the instant of the highest total.
struct StaticMemory {
  std::int64_t peak_bytes = 0;
  // by BufferCategory, transients of the running segment counted as activation
  std::array<std::int64_t, kBufferCategories> at_peak{};
  std::int64_t persistent_bytes = 0;
  std::int64_t peak_op = -1;    // issue index where the peak stands
  std::int64_t host_bytes = 0;  // in the host's memory for this rank, at most; not in peak_bytes
};

/// Walks the class's operations in issue order: writes allocate, the running segment adds its
/// transient bytes, frees give back after the operation. What a send or a copy to the host frees
/// stays alive until the next operation of that stream has been issued (the executor waits there),
/// so this is what a rank that runs in issue order really holds.
StaticMemory static_memory(const Program& program, const RankClass& rank_class,
                           double loss_bytes = 0);

/// Bytes alive while each operation of the class runs, in issue order; the largest is the peak.
std::vector<std::int64_t> memory_by_op(const Program& program, const RankClass& rank_class);

/// Of a segment beside its operands: its own, and `loss_bytes` for each logit of a loss.
std::int64_t transient_bytes(const model::SegmentShape& shape, Phase phase, double loss_bytes);

/// What one template does to memory, relative to the bytes alive when it starts. What it copies to
/// the host is alive when it has ended (copied_bytes).
struct TemplateMemory {
  std::int64_t delta_bytes = 0;  // alive after - alive before
  std::int64_t peak_bytes = 0;   // highest above the start, >= 0
  bool operator==(const TemplateMemory&) const = default;
};
TemplateMemory template_memory(const Program& program, TemplateId id);
/// What a template leaves on the device while it is copied to the host.
std::int64_t copied_bytes(const Program& program, const Template& t);

}  // namespace orrery::plan
