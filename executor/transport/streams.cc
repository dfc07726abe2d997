#include "executor/transport/streams.h"

#include "base/check.h"

#ifndef ORRERY_HAS_CUDA
namespace orrery::executor {

base::Result<std::unique_ptr<Streams>> make_cuda_streams(c10::Device) {
  ORRERY_CHECK(false, "no CUDA in this build");
}

}  // namespace orrery::executor
#endif
