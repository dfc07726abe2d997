/// NCCL's place in a build without it.
#include "executor/transport/communicator.h"

namespace orrery::executor {

base::Result<std::unique_ptr<Communicator>> make_nccl_communicator(const Launch&, c10::Device) {
  return base::fail(base::ErrorCode::kMissingFeature, "this build of orrery has no NCCL");
}

}  // namespace orrery::executor
