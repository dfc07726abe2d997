#pragma once
/// Waits on a CUDA stream by the device's own clock (timed_wait_cuda.cu). No name of CUDA or of
/// LibTorch stands here, as in executor/device/device_kernels.h. A function returns what the
/// launch ended with: null, or the toolkit's words.
#include <cstdint>

namespace orrery::executor::device {

/// Stores the device's time in nanoseconds at `time`, which is on the device. `queue`: a
/// cudaStream_t.
const char* store_time(void* queue, std::int64_t* time);
/// What follows on the queue starts no earlier than `nanoseconds` after the stored time.
const char* wait_since(void* queue, const std::int64_t* time, std::int64_t nanoseconds);

}  // namespace orrery::executor::device
