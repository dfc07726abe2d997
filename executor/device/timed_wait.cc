#include "executor/device/timed_wait.h"

#include "base/check.h"

#ifndef ORRERY_HAS_CUDA
namespace orrery::executor::device {

const char* store_time(Queue, std::int64_t*) { ORRERY_CHECK(false, "no CUDA in this build"); }
const char* wait_since(Queue, const std::int64_t*, std::int64_t) {
  ORRERY_CHECK(false, "no CUDA in this build");
}

}  // namespace orrery::executor::device
#endif
