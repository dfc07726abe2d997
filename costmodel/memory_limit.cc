#include "costmodel/memory_limit.h"

#include <algorithm>

#include "base/numbers.h"

namespace orrery::costmodel {

MemoryLimit::MemoryLimit(const CostModel& cost, std::int64_t stated) {
  if (stated > 0) {
    by_kind_ = {stated};
    return;
  }
  for (const topologies::DeviceModel& device : cost.topology().device_models())
    by_kind_.push_back(device.memory_bytes);
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
