#include "executor/state/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/numbers.h"
#include "base/text.h"

namespace orrery::executor {

using base::ErrorCode;

base::Result<std::string> resolve_device(const std::string& device, const std::string& backend) {
  const std::vector<std::string> names{"auto", "cpu", "cuda"};
  if (device == "cpu") return device;
  if (device == "auto") return backend != "mpi" && cuda_device_count() > 0 ? "cuda" : "cpu";
  if (device != "cuda") {
    return base::fail(base::make_error(ErrorCode::kBadValue, "unknown device '{}'", device)
                          .with_hint(base::did_you_mean(device, names, "devices")));
  }
#ifndef ORRERY_HAS_CUDA
  return base::fail(ErrorCode::kMissingFeature, "this build of orrery has no CUDA");
#else
  if (cuda_device_count() == 0) return base::fail(ErrorCode::kDevice, "no CUDA device is visible");
  return device;
#endif
}

base::Result<int> device_index(int local_rank, int visible) {
  if (visible == 1) return 0;
  if (local_rank < visible) return local_rank;
  return base::fail(ErrorCode::kDevice, "local rank {} has no CUDA device: {} are visible",
                    local_rank, visible);
}

base::Result<c10::Device> open_device(const std::string& device, int local_rank) {
  if (device == "cpu") return c10::Device(c10::kCPU);
  TRY(const int index, device_index(local_rank, cuda_device_count()));
  cuda_open(index);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

DeviceMemory::DeviceMemory(CountingAllocator& cpu, c10::Device device)
    : cpu_(cpu), device_(device), before_(device.is_cpu() ? 0 : cuda_memory(device.index()).live) {}

MemoryCount DeviceMemory::count() const {
  if (device_.is_cpu()) return cpu_.count();
  MemoryCount count = cuda_memory(device_.index());
  constexpr auto kActivation = as_index(plan::BufferCategory::kActivation);
  count.live -= before_;
  count.peak -= before_;
  count.live_by_category[kActivation] = count.live;
  count.at_peak[kActivation] = count.peak;
  return count;
}
void DeviceMemory::reset_peak() {
  if (device_.is_cpu())
    cpu_.reset_peak();
  else
    cuda_reset_peak(device_.index());
}
std::int64_t DeviceMemory::framework_bytes() const {
  return device_.is_cpu() ? 0 : cuda_framework_bytes(device_.index()) + before_;
}
void DeviceMemory::release_cached() const {
  if (!device_.is_cpu()) cuda_release_cached();
}
void DeviceMemory::synchronize() const {
  if (!device_.is_cpu()) cuda_synchronize(device_.index());
}

void DeviceMarks::clear() {
  times_.clear();
  events_.clear();
}

void DeviceMarks::mark() {
  if (device_.is_cpu()) {
    times_.push_back(std::chrono::steady_clock::now());
    return;
  }
  // this flag makes an event of CUDA keep its time
  events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  events_.back().record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

std::vector<std::int64_t> DeviceMarks::picoseconds() const {
  std::vector<std::int64_t> since;
  for (const auto& time : times_) {
    since.push_back(
        std::chrono::duration_cast<std::chrono::nanoseconds>(time - times_.front()).count() * 1000);
  }
  if (events_.empty()) return since;
  events_.back().synchronize();
  for (const c10::Event& event : events_) {
    const double milliseconds =
        &event == &events_.front() ? 0.0 : events_.front().elapsedTime(event);
    since.push_back(std::llround(milliseconds * 1e9));
  }
  return since;
}

AcceleratorName accelerator_name(c10::Device device) {
  return device.is_cpu() ? AcceleratorName{} : cuda_name(device.index());
}

}  // namespace orrery::executor
