#pragma once
/// Codes of CUDA and NCCL as errors.
#include <nccl.h>

#include "executor/transport/checks_cuda.h"

namespace orrery::executor {

/// kCollective with NCCL's own words.
base::Result<void> check(ncclResult_t code, const char* what);

}  // namespace orrery::executor
