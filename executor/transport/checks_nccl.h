#pragma once
/// Codes of CUDA and NCCL as errors.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "base/result.h"

namespace orrery::executor {

/// kCollective with NCCL's own words.
base::Result<void> check(ncclResult_t code, const char* what);
/// kDevice.
base::Result<void> check(cudaError_t code, const char* what);

}  // namespace orrery::executor
