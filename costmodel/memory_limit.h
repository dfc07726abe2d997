#pragma once
/// \file
/// Bytes that the ranks of a stage may take: what is stated for the allocator, or else the memory
/// of its devices less what is kept. A stage on devices of several kinds has the least of them:
///
///     limit(stage) = stated, or else min over the kinds k among its ranks of memory_k − kept_k
///     kept_k = ⌈driver_share · memory_k⌉ + context + communicators · communicator_bytes
///     communicators = min(3, ⌊log2 devices⌋)
///
/// Three: a rank reduces with its data group, its tensor group, and passes activations on; fewer
/// devices than 8 have no factors for as many groups. Shares and bytes are the framework's
/// (model::Framework); a context that the profile measured counts with the rank's buffers
/// (CostModel::context_bytes) and not here.
#include <cstdint>
#include <vector>

#include "costmodel/cost_model.h"

namespace orrery::costmodel {

/// kept_k of a kind of device, bytes.
std::int64_t kept_bytes(const CostModel& cost, std::size_t kind);

class MemoryLimit {
 public:
  /// The same on all devices.
  MemoryLimit(std::int64_t bytes) : by_kind_{bytes} {}
  /// What is stated; 0: every device's own memory less what is kept of it.
  MemoryLimit(const CostModel& cost, std::int64_t stated);

  /// Whether it is one number.
  bool same() const { return by_kind_.size() == 1; }
  std::int64_t least() const;
  std::int64_t most() const;
  /// Of a stage on these devices; no kind: the most.
  std::int64_t of(DeviceKinds kinds) const;
  std::int64_t of(const CostModel& cost, int first_rank, int rank_count) const {
    return same() ? by_kind_.front() : of(cost.kinds_of(first_rank, rank_count));
  }
  /// Of pipeline rank `stage` of a plan.
  std::int64_t of_stage(const CostModel& cost, const plan::Plan& plan, int stage) const {
    return of(cost, stage * plan.devices_per_stage(), plan.devices_per_stage());
  }
  /// What the Program's buffers may take (CostModel::usable_bytes).
  MemoryLimit usable(const CostModel& cost) const;
  /// What is reserved for buffers that take that much (CostModel::reserved_bytes).
  MemoryLimit reserved(const CostModel& cost) const;
  /// By more, or less, everywhere.
  MemoryLimit plus(std::int64_t bytes) const;
  bool operator==(const MemoryLimit&) const = default;

 private:
  std::vector<std::int64_t> by_kind_;  // one, or [device model]
};

}  // namespace orrery::costmodel
