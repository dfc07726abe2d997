#pragma once
/// Devices: which one a rank computes on, and how its bytes are counted.
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "executor/state/allocator.h"

namespace at {
class Tensor;
}

namespace orrery::executor {

/// "cpu" or "cuda"; "auto" is cuda where this build and machine have it and the backend moves CUDA
/// tensors, else cpu. Errors: kBadValue for another name, kMissingFeature, kDevice.
base::Result<std::string> resolve_device(const std::string& device, const std::string& backend);
/// Which of `visible` devices a rank takes: its own, or the only one, where its launcher shows it
/// one alone. Error: kDevice.
base::Result<int> device_index(int local_rank, int visible);
/// Device of a rank; makes it current.
base::Result<c10::Device> open_device(const std::string& device, int local_rank);

/// Bytes of tensors on one device. On CUDA the caching allocator of LibTorch counts (requested
/// bytes, without categories: all stand under activations), from what was there at construction:
/// workspaces of products that the framework keeps. On the CPU ours counts, from zero.
class DeviceMemory {
 public:
  DeviceMemory(CountingAllocator& cpu, c10::Device device);
  [[nodiscard]] MemoryCount count() const;
  void reset_peak();
  /// What the framework and its libraries hold of an accelerator's memory beside tensors, if no
  /// other process uses it; 0 on the CPU.
  [[nodiscard]] std::int64_t framework_bytes() const;
  /// Gives back what LibTorch keeps of a CUDA device beyond its tensors.
  void release_cached() const;
  /// Waits for the device's work, so that a clock read after it covers it.
  void synchronize() const;

 private:
  CountingAllocator& cpu_;
  c10::Device device_;
  std::int64_t before_ = 0;
};

/// Points in time along a device's work: the host's clock on the CPU; events of the current stream
/// on CUDA, where work runs after it was issued. Between two marks lies what was issued between
/// them, and the wait for the host where the device was the faster.
class DeviceMarks {
 public:
  explicit DeviceMarks(c10::Device device) : device_(device) {}
  void clear();
  void mark();
  /// From the first mark to each, in picoseconds; waits for the last.
  [[nodiscard]] std::vector<std::int64_t> picoseconds() const;

 private:
  c10::Device device_;
  std::vector<std::chrono::steady_clock::time_point> times_;
  std::vector<c10::Event> events_;
};

/// Seconds since it was made.
class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// "H200, driver 13.0" for a provenance; empty for the CPU.
struct AcceleratorName {
  std::string model, software;
};
AcceleratorName accelerator_name(c10::Device device);

// device_cuda.cc; only where this build has CUDA.
int cuda_device_count();
void cuda_open(int index);
MemoryCount cuda_memory(int index);
void cuda_reset_peak(int index);
void cuda_synchronize(int index);
AcceleratorName cuda_name(int index);
std::int64_t cuda_framework_bytes(int index);
void cuda_release_cached();
// Streams are cudaStream_t.
void* cuda_current_stream(int index);
void cuda_set_stream(int index, void* stream);

}  // namespace orrery::executor
