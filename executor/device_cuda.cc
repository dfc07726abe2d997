#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include "executor/device.h"

namespace orrery::executor {
namespace {

constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

}  // namespace

int cuda_device_count() { return c10::cuda::device_count(); }

void cuda_open(int index) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
  c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count());
}

MemoryCount cuda_memory(int index) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(index));
  MemoryCount count;
  count.live = stats.requested_bytes[kAll].current;
  count.peak = stats.requested_bytes[kAll].peak;
  constexpr auto kActivation = static_cast<std::size_t>(plan::BufferCategory::kActivation);
  count.live_by_category[kActivation] = count.live;
  count.at_peak[kActivation] = count.peak;
  return count;
}

void cuda_reset_peak(int index) { c10::cuda::CUDACachingAllocator::resetPeakStats(static_cast<c10::DeviceIndex>(index)); }

void cuda_synchronize(int index) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
  c10::cuda::device_synchronize();
}

}  // namespace orrery::executor
