#pragma once
/// Device streams of a transport that issues operations and goes on: one for each stream of the
/// Program, ordered by events where an operation depends on one of another stream, and nowhere
/// else. What runs beside what is then what the Program allows.
///
/// Tensors of the host take part as well (a device that shares its memory): LibTorch computes on
/// them at once, so the host first waits until the stream has come to that point.
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "plan/program/program.h"

namespace orrery::executor {

class Streams {
 public:
  virtual ~Streams() = default;
  /// What is issued from here on runs on `stream`, after the marks of the operations `after`.
  /// `computes`: LibTorch works on tensors there; without it only the transport does. Errors:
  /// kDevice.
  virtual base::Result<void> enter(plan::Stream stream, std::span<const std::uint32_t> after,
                                   bool computes) = 0;
  /// What was issued on `stream` so far is operation `operation` and those before it.
  virtual base::Result<void> mark(plan::Stream stream, std::uint32_t operation) = 0;
  /// The host waits until a marked operation has ended. Errors: kDevice.
  virtual base::Result<void> await(std::uint32_t operation) = 0;
  /// Whether a marked operation has ended.
  [[nodiscard]] virtual bool ended(std::uint32_t operation) = 0;
  /// The host waits for all streams, and the stream of compute is current. Errors: kDevice.
  virtual base::Result<void> finish() = 0;
};

/// Those of a CUDA device (streams_cuda.h) for kernels that are short or only wait: they go before
/// those of compute. Error: kDevice.
base::Result<std::unique_ptr<Streams>> make_cuda_streams(c10::Device device);

}  // namespace orrery::executor
