#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "base/numbers.h"
#include "executor/state/device.h"

namespace orrery::executor {
namespace {

constexpr auto kAll = as_index(c10::CachingAllocator::StatType::AGGREGATE);

// The first products allocate workspaces that stay: they are the framework's, so they are made
// before anything is counted.
void make_workspaces(c10::Device device) {
  const c10::InferenceMode no_autograd;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor one = at::ones({64, 64}, at::TensorOptions().dtype(type).device(device));
    at::mm(one, one);
  }
}

c10::CachingDeviceAllocator::DeviceStats stats_of(int index) {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(index));
}

}  // namespace

int cuda_device_count() { return c10::cuda::device_count(); }

void cuda_open(int index) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
  c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count());
  make_workspaces(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)));
}

MemoryCount cuda_memory(int index) {
  const auto stats = stats_of(index);
  MemoryCount count;
  count.live = stats.requested_bytes[kAll].current;
  count.peak = stats.requested_bytes[kAll].peak;
  return count;
}

void cuda_reset_peak(int index) {
  c10::cuda::CUDACachingAllocator::resetPeakStats(static_cast<c10::DeviceIndex>(index));
}

void cuda_synchronize(int index) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
  c10::cuda::device_synchronize();
}

std::int64_t cuda_framework_bytes(int index) {
  std::size_t available = 0, total = 0;
  if (cudaMemGetInfo(&available, &total) != cudaSuccess) return 0;
  return static_cast<std::int64_t>(total - available) -
         stats_of(index).reserved_bytes[kAll].current;
}

void cuda_release_cached() { c10::cuda::CUDACachingAllocator::emptyCache(); }

void* cuda_current_stream(int index) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(index)).stream();
}
void cuda_set_stream(int index, void* stream) {
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(
      static_cast<cudaStream_t>(stream), static_cast<c10::DeviceIndex>(index)));
}

AcceleratorName cuda_name(int index) {
  cudaDeviceProp properties{};
  int driver = 0;
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess ||
      cudaDriverGetVersion(&driver) != cudaSuccess)
    return {"unknown GPU", ""};
  std::string model = properties.name;
  if (const std::string vendor = "NVIDIA "; model.starts_with(vendor))
    model = model.substr(vendor.size());
  return {std::move(model),
          fmt::format("driver for CUDA {}.{}", driver / 1000, driver % 1000 / 10)};
}

}  // namespace orrery::executor
