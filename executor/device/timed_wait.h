#pragma once
/// Waits on a CUDA stream by the device's own clock (timed_wait_cuda.cu); functions as those of
/// device_kernels.h.
#include "executor/device/device_kernels.h"

namespace orrery::executor::device {

/// Stores the device's time in nanoseconds at `time`, which is on the device.
const char* store_time(Queue queue, std::int64_t* time);
/// What follows on the queue starts no earlier than `nanoseconds` after the stored time.
const char* wait_since(Queue queue, const std::int64_t* time, std::int64_t nanoseconds);

}  // namespace orrery::executor::device
