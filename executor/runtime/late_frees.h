#pragma once
/// What a host that runs ahead of its device must not hand out yet.
///
/// Over a transport that issues and goes on (transport/streams.h) an operation frees when it is
/// issued, and other streams may use the buffer still. It is held until its last users have ended.
///
///  1. Bytes held and bytes alive in issue order (plan/program/memory.h) are together at most the
///     peak in issue order: the host waits for users, oldest first.
///  2. The host waits for no send and no copy to the host before the next operation of that stream
///     is issued. A rank that runs in issue order has waited for each of these by then
///     (interpreter.h), so no circle of waits closes between ranks that does not there; where
///     nothing else is held, 1 gives way.
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/result.h"
#include "executor/runtime/stream_order.h"
#include "executor/transport/streams.h"

namespace orrery::executor {

class LateFrees {
 public:
  /// `order` must outlive it.
  LateFrees(const plan::Program& program, const plan::RankClass& rank_class,
            const StreamOrder& order);

  /// Operation `op` is about to be issued. Errors: of Streams::await.
  base::Result<void> admit(std::size_t op, Streams& streams);
  /// Operation `op` was issued, and frees `tensor`.
  void hold(std::size_t op, const StreamOrder::Free& free, at::Tensor tensor);
  /// Every operation has ended.
  void clear();

  [[nodiscard]] std::int64_t held_bytes() const { return bytes_; }
  /// Bytes alive in issue order while `op` runs.
  [[nodiscard]] std::int64_t alive_bytes(std::size_t op) const { return alive_[op]; }

 private:
  struct Held {
    std::vector<std::uint32_t> users;
    std::int64_t bytes = 0;
    at::Tensor tensor;
  };
  [[nodiscard]] bool under_way(std::uint32_t op) const;
  [[nodiscard]] std::deque<Held>::iterator oldest();
  void give_back_what_ended(Streams& streams);

  const StreamOrder& order_;
  std::vector<std::int64_t> alive_;  // [operation]
  std::int64_t peak_ = 0;
  std::deque<Held> held_;  // in issue order
  std::int64_t bytes_ = 0;
  // of the last send or copy of each stream: alive in issue order
  std::array<std::vector<Held>, plan::kStreams> late_;
  std::array<std::uint32_t, plan::kStreams> last_{};  // issued, + 1
};

}  // namespace orrery::executor
