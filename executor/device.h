#pragma once
/// Devices: which one a rank computes on, and how its bytes are counted.
#include <c10/core/Device.h>

#include <string>

#include "base/result.h"
#include "executor/allocator.h"

namespace orrery::executor {

/// "cpu" or "cuda"; "auto" is cuda where this build and machine have it and the backend moves CUDA tensors, else cpu.
/// Errors: kBadValue for another name, kMissingFeature, kDevice.
base::Result<std::string> resolve_device(const std::string& device, const std::string& backend);
/// Device of a rank; makes it current.
base::Result<c10::Device> open_device(const std::string& device, int local_rank);

/// Bytes of tensors on one device. On CUDA the caching allocator of LibTorch counts (requested bytes, without categories: all
/// stand under activations); on the CPU ours does.
class DeviceMemory {
 public:
  DeviceMemory(CountingAllocator& cpu, c10::Device device) : cpu_(cpu), device_(device) {}
  [[nodiscard]] MemoryCount count() const;
  void reset_peak();
  /// Waits for the device's work, so that a clock read after it covers it.
  void synchronize() const;

 private:
  CountingAllocator& cpu_;
  c10::Device device_;
};

// device_cuda.cc; only where this build has CUDA.
int cuda_device_count();
void cuda_open(int index);
MemoryCount cuda_memory(int index);
void cuda_reset_peak(int index);
void cuda_synchronize(int index);

}  // namespace orrery::executor
