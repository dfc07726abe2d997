#include "executor/device/device_code.cuh"
#include "executor/device/timed_wait.h"

namespace orrery::executor::device {
namespace {

__device__ std::int64_t now() {
  unsigned long long nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return static_cast<std::int64_t>(nanoseconds);
}

__global__ void store_time_kernel(std::int64_t* time) { *time = now(); }

// One thread on one multiprocessor: whatever computes beside it loses next to nothing.
__global__ void wait_kernel(const std::int64_t* time, std::int64_t nanoseconds) {
  const std::int64_t end = *time + nanoseconds;
  while (now() < end) {
#if __CUDA_ARCH__ >= 700
    __nanosleep(100);
#endif
  }
}

}  // namespace

const char* store_time(Queue queue, std::int64_t* time) {
  launch(store_time_kernel, 1, 1, queue, time);
  return fault_of_launch();
}

const char* wait_since(Queue queue, const std::int64_t* time, std::int64_t nanoseconds) {
  launch(wait_kernel, 1, 1, queue, time, nanoseconds);
  return fault_of_launch();
}

}  // namespace orrery::executor::device
