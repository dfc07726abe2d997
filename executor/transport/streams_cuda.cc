#include "executor/transport/streams_cuda.h"

#include "base/numbers.h"
#include "executor/state/device.h"
#include "executor/transport/checks_cuda.h"

namespace orrery::executor {

namespace {
constexpr auto kCompute = as_index(plan::Stream::kCompute);
}  // namespace

base::Result<void> check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  return base::fail(base::ErrorCode::kDevice, "{}: {}", what, cudaGetErrorString(code));
}

base::Result<std::unique_ptr<Streams>> make_cuda_streams(c10::Device device) {
  // A kernel of one thread would wait for the last wave of whatever computes beside it.
  int least = 0, greatest = 0;
  TRY_VOID(check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                 "cudaDeviceGetStreamPriorityRange"));
  return CudaStreams::create(device, greatest);
}

base::Result<std::unique_ptr<CudaStreams>> CudaStreams::create(c10::Device device, int priority) {
  std::unique_ptr<CudaStreams> made(new CudaStreams(device));
  for (std::size_t s = 0; s < made->streams_.size(); ++s) {
    if (s == kCompute && !device.is_cpu())
      made->streams_[s] = static_cast<cudaStream_t>(cuda_current_stream(device.index()));
    else
      TRY_VOID(
          check(cudaStreamCreateWithPriority(&made->streams_[s], cudaStreamNonBlocking, priority),
                "cudaStreamCreate"));
  }
  return made;
}

CudaStreams::~CudaStreams() {
  for (cudaEvent_t event : marks_)
    if (event != nullptr) cudaEventDestroy(event);
  for (std::size_t s = 0; s < streams_.size(); ++s)
    if (streams_[s] != nullptr && (s != kCompute || device_.is_cpu()))
      cudaStreamDestroy(streams_[s]);
}

void CudaStreams::make_current(std::size_t stream) {
  if (current_ != stream && !device_.is_cpu()) cuda_set_stream(device_.index(), streams_[stream]);
  current_ = stream;
}

base::Result<void> CudaStreams::enter(plan::Stream stream, std::span<const std::uint32_t> after,
                                      bool computes) {
  make_current(as_index(stream));
  computes_ = computes;
  for (const std::uint32_t operation : after)
    TRY_VOID(check(cudaStreamWaitEvent(current(), marks_[operation], 0), "cudaStreamWaitEvent"));
  if (host_follows()) return check(cudaStreamSynchronize(current()), "cudaStreamSynchronize");
  return {};
}

base::Result<void> CudaStreams::mark(plan::Stream stream, std::uint32_t operation) {
  if (marks_.size() <= operation) marks_.resize(operation + 1, nullptr);
  cudaEvent_t& event = marks_[operation];
  if (event == nullptr)
    TRY_VOID(check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate"));
  return check(cudaEventRecord(event, streams_[as_index(stream)]), "cudaEventRecord");
}

base::Result<void> CudaStreams::await(std::uint32_t operation) {
  return check(cudaEventSynchronize(marks_[operation]), "cudaEventSynchronize");
}

bool CudaStreams::ended(std::uint32_t operation) {
  return cudaEventQuery(marks_[operation]) == cudaSuccess;
}

base::Result<void> CudaStreams::finish() {
  for (cudaStream_t stream : streams_)
    TRY_VOID(check(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  make_current(kCompute);
  computes_ = true;
  return {};
}

}  // namespace orrery::executor
