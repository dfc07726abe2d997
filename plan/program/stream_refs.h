#pragma once
/// \file
/// What operations touch that other streams touch too.
///
/// Operations of one stream end in the order of their issue, so a buffer of a single stream orders
/// nothing across streams and goes when its freeing operation ends. Only the others need to be
/// followed from operation to operation (expand.h, sim/step/lifetimes.h): they are a small part.
///
/// Of the accesses of one stream to an instance in a template, with no free and none of another
/// stream between them (a *turn*), order across streams is known by
///
///     (looks)   the first, and the first that changes it: must wait for the turns before
///     (leaves)  the last that changes it, the last of all: must be over for those that follow
///
/// for an operation starts after the one before it on its stream has ended. The others are left
/// out.
#include <cstdint>
#include <span>
#include <vector>

#include "plan/program/expand.h"

namespace orrery::plan {

enum class Access : std::uint8_t { kRead, kUpdate, kWrite, kFree };

class StreamRefs {
 public:
  struct Ref {
    BufferRef buffer;
    Access access = Access::kRead;
    bool looks = false, leaves = false;
    std::int64_t bytes = 0;  // of the buffer
  };
  explicit StreamRefs(const Program& program);

  /// Of one operation of a template: reads and weights, updates and gradients, writes, frees of
  /// buffers that several streams touch, but for those in the midst of a turn; frees come last.
  [[nodiscard]] std::span<const Ref> of(const OpInstance& op) const {
    const std::uint32_t at = number(op);
    return {refs_.data() + begin_[at], begin_[at + 1] - begin_[at]};
  }
  [[nodiscard]] bool follows(BufferId buffer) const { return followed_[buffer.raw()]; }
  /// Bytes that the operation writes; bytes that it frees of buffers of its stream alone.
  [[nodiscard]] std::int64_t written_bytes(const OpInstance& op) const {
    return written_bytes_[number(op)];
  }
  [[nodiscard]] std::int64_t freed_bytes(const OpInstance& op) const {
    return freed_bytes_[number(op)];
  }

 private:
  void add(const Program& program, const Template& t, const std::vector<std::int64_t>& bytes_of);
  [[nodiscard]] std::uint32_t number(const OpInstance& op) const {
    return offsets_[op.source.raw()] + op.index;
  }
  std::vector<bool> followed_;          // [buffer] touched by several streams
  std::vector<std::uint32_t> offsets_;  // [template] of its first operation's number
  std::vector<std::uint32_t> begin_;    // [number + 1] into refs_
  std::vector<Ref> refs_;
  std::vector<std::int64_t> written_bytes_, freed_bytes_;  // [number]
};

}  // namespace orrery::plan
