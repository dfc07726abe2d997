#pragma once
/// Streams and events of the CUDA runtime on threads of the host: what the transport calls, by the
/// same symbols. A stream runs its work in order on a thread of its own; an event is passed when
/// the work before its record is. Device memory is host memory, so tensors stay on the CPU, and a
/// kernel is a function that somebody enqueues.
#include <cuda_runtime_api.h>

#include <functional>

namespace orrery::tests::fake {

/// `work` runs on the stream's thread after all that was enqueued before. False: no such stream.
bool enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace orrery::tests::fake
