#include "executor/device.h"

#include <vector>

#include "base/check.h"
#include "base/text.h"

namespace orrery::executor {

using base::ErrorCode;

#ifndef ORRERY_HAS_CUDA
int cuda_device_count() { return 0; }
void cuda_open(int) { ORRERY_CHECK(false, "no CUDA in this build"); }
MemoryCount cuda_memory(int) { ORRERY_CHECK(false, "no CUDA in this build"); }
void cuda_reset_peak(int) { ORRERY_CHECK(false, "no CUDA in this build"); }
void cuda_synchronize(int) { ORRERY_CHECK(false, "no CUDA in this build"); }
#endif

base::Result<std::string> resolve_device(const std::string& device, const std::string& backend) {
  const std::vector<std::string> names{"auto", "cpu", "cuda"};
  if (device == "cpu") return device;
  if (device == "auto") return backend != "mpi" && cuda_device_count() > 0 ? "cuda" : "cpu";
  if (device != "cuda") {
    base::Diagnostic unknown = base::make_error(ErrorCode::kBadValue, "unknown device '{}'", device);
    unknown.hint = base::did_you_mean(device, names, "devices");
    return base::fail(std::move(unknown));
  }
#ifndef ORRERY_HAS_CUDA
  return base::fail(ErrorCode::kMissingFeature, "this build of orrery has no CUDA");
#else
  if (cuda_device_count() == 0) return base::fail(ErrorCode::kDevice, "no CUDA device is visible");
  return device;
#endif
}

base::Result<c10::Device> open_device(const std::string& device, int local_rank) {
  if (device == "cpu") return c10::Device(c10::kCPU);
  if (local_rank >= cuda_device_count()) {
    return base::fail(ErrorCode::kDevice, "local rank {} has no CUDA device: {} are visible", local_rank, cuda_device_count());
  }
  cuda_open(local_rank);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank));
}

MemoryCount DeviceMemory::count() const { return device_.is_cpu() ? cpu_.count() : cuda_memory(device_.index()); }
void DeviceMemory::reset_peak() {
  if (device_.is_cpu()) cpu_.reset_peak();
  else cuda_reset_peak(device_.index());
}
void DeviceMemory::synchronize() const {
  if (!device_.is_cpu()) cuda_synchronize(device_.index());
}

}  // namespace orrery::executor
