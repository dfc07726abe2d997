#include "base/check.h"
#include "executor/state/device.h"

#ifndef ORRERY_HAS_CUDA
namespace orrery::executor {

namespace {
[[noreturn]] void none() { ORRERY_CHECK(false, "no CUDA in this build"); }
}  // namespace

int cuda_device_count() { return 0; }
void cuda_open(int) { none(); }
MemoryCount cuda_memory(int) { none(); }
void cuda_reset_peak(int) { none(); }
void cuda_synchronize(int) { none(); }
AcceleratorName cuda_name(int) { none(); }
std::int64_t cuda_framework_bytes(int) { none(); }
void cuda_release_cached() { none(); }
void* cuda_current_stream(int) { none(); }
void cuda_set_stream(int, void*) { none(); }

}  // namespace orrery::executor
#endif
