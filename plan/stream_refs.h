#pragma once
/// \file
/// What operations touch that other streams touch too.
///
/// Operations of one stream end in the order of their issue, so a buffer of a single stream orders nothing across streams and goes when its freeing
/// operation ends. Only the others need to be followed from operation to operation (expand.h, sim/lifetimes.h): they are a small part.
#include <cstdint>
#include <span>
#include <vector>

#include "plan/expand.h"

namespace orrery::plan {

enum class Access : std::uint8_t { kRead, kUpdate, kWrite, kFree };

class StreamRefs {
 public:
  struct Ref {
    BufferRef buffer;
    Access access = Access::kRead;
  };
  explicit StreamRefs(const Program& program);

  /// Of one operation of a template: reads and weights, updates and gradients, writes, frees of buffers that several streams touch.
  [[nodiscard]] std::span<const Ref> of(const OpInstance& op) const {
    const std::uint32_t at = number(op);
    return {refs_.data() + begin_[at], begin_[at + 1] - begin_[at]};
  }
  /// Bytes that the operation writes; bytes that it frees of buffers of its stream alone.
  [[nodiscard]] std::int64_t written_bytes(const OpInstance& op) const { return written_bytes_[number(op)]; }
  [[nodiscard]] std::int64_t freed_bytes(const OpInstance& op) const { return freed_bytes_[number(op)]; }

 private:
  [[nodiscard]] std::uint32_t number(const OpInstance& op) const { return offsets_[op.source.raw()] + op.index; }
  std::vector<std::uint32_t> offsets_;  // [template] of its first operation's number
  std::vector<std::uint32_t> begin_;    // [number + 1] into refs_
  std::vector<Ref> refs_;
  std::vector<std::int64_t> written_bytes_, freed_bytes_;  // [number]
};

}  // namespace orrery::plan
