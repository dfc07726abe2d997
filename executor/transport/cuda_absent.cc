/// CUDA's place in a build without it: nobody comes here, for no device of it can be opened.
#include "base/check.h"
#include "executor/transport/streams.h"
#include "executor/transport/timed_wait.h"

namespace orrery::executor {

base::Result<std::unique_ptr<Streams>> make_cuda_streams(c10::Device) {
  ORRERY_CHECK(false, "no CUDA in this build");
}

const char* device::store_time(void*, std::int64_t*) {
  ORRERY_CHECK(false, "no CUDA in this build");
}
const char* device::wait_since(void*, const std::int64_t*, std::int64_t) {
  ORRERY_CHECK(false, "no CUDA in this build");
}

}  // namespace orrery::executor
