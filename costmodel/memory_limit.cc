#include "costmodel/memory_limit.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/numbers.h"

namespace orrery::costmodel {

std::int64_t kept_bytes(const CostModel& cost, std::size_t kind) {
  constexpr int kMostGroups = 3;
  if (!cost.profile() || !cost.profile()->framework) return 0;
  const model::Framework& framework = *cost.profile()->framework;
  const std::uint64_t devices = cost.topology().device_count();
  const int communicators = std::min(kMostGroups, as_int(std::bit_width(devices)) - 1);
  const bool measured = cost.profile()->context_bytes > 0;
  const double memory = real(cost.topology().device_models()[kind].memory_bytes);
  return std::llround(std::ceil(framework.driver_share * memory)) +
         (measured ? 0 : std::llround(framework.context_bytes)) +
         communicators * std::llround(framework.communicator_bytes);
}

MemoryLimit::MemoryLimit(const CostModel& cost, std::int64_t stated) {
  if (stated > 0) {
    by_kind_ = {stated};
    return;
  }
  const auto& kinds = cost.topology().device_models();
  for (std::size_t k = 0; k < kinds.size(); ++k)
    by_kind_.push_back(kinds[k].memory_bytes - kept_bytes(cost, k));
  if (least() == most()) by_kind_.resize(1);
}

std::int64_t MemoryLimit::least() const { return std::ranges::min(by_kind_); }
std::int64_t MemoryLimit::most() const { return std::ranges::max(by_kind_); }

std::int64_t MemoryLimit::of(DeviceKinds kinds) const {
  if (same()) return by_kind_.front();
  std::int64_t bytes = most();
  for (std::size_t k = 0; k < by_kind_.size(); ++k) {
    if ((kinds >> k & 1) != 0) bytes = std::min(bytes, by_kind_[k]);
  }
  return bytes;
}

MemoryLimit MemoryLimit::usable(const CostModel& cost) const {
  MemoryLimit changed(*this);
  for (std::int64_t& bytes : changed.by_kind_) bytes = cost.usable_bytes(bytes);
  return changed;
}
MemoryLimit MemoryLimit::reserved(const CostModel& cost) const {
  MemoryLimit changed(*this);
  for (std::int64_t& bytes : changed.by_kind_) bytes = cost.reserved_bytes(bytes);
  return changed;
}
MemoryLimit MemoryLimit::plus(std::int64_t more) const {
  MemoryLimit changed(*this);
  for (std::int64_t& bytes : changed.by_kind_) bytes += more;
  return changed;
}

}  // namespace orrery::costmodel
