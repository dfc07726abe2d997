#pragma once
/// Codes of CUDA as errors.
#include <cuda_runtime_api.h>

#include "base/result.h"

namespace orrery::executor {

/// kDevice.
base::Result<void> check(cudaError_t code, const char* what);

}  // namespace orrery::executor
