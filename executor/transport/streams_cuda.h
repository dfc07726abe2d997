#pragma once
#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <vector>

#include "executor/transport/streams.h"

namespace orrery::executor {

/// On the runtime of CUDA. Compute runs on the stream that is current when they are made.
class CudaStreams final : public Streams {
 public:
  /// `priority`: CUDA's, of all streams but that of compute.
  static base::Result<std::unique_ptr<CudaStreams>> create(c10::Device device, int priority = 0);
  ~CudaStreams() override;
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

  base::Result<void> enter(plan::Stream stream, std::span<const std::uint32_t> after,
                           bool computes) override;
  base::Result<void> mark(plan::Stream stream, std::uint32_t operation) override;
  base::Result<void> await(std::uint32_t operation) override;
  [[nodiscard]] bool ended(std::uint32_t operation) override;
  base::Result<void> finish() override;

  [[nodiscard]] cudaStream_t current() const { return streams_[current_]; }
  /// Whether the host reads results as soon as an operation of the transport has been issued.
  [[nodiscard]] bool host_follows() const { return device_.is_cpu() && computes_; }

 private:
  explicit CudaStreams(c10::Device device) : device_(device) {}
  void make_current(std::size_t stream);

  c10::Device device_;
  std::array<cudaStream_t, plan::kStreams> streams_{};
  std::size_t current_ = 0;
  bool computes_ = true;
  std::vector<cudaEvent_t> marks_;  // by operation; null: not made yet
};

}  // namespace orrery::executor
