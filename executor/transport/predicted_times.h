#pragma once
/// Makes the operations of a transport that moves nothing take the time that was predicted for
/// them: on the CPU the host waits, on CUDA the current stream does, and the host goes on. Time
/// counts from when an operation's work begins there, so what is done to make up its data is part
/// of it; where that takes longer, so does the operation.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/result.h"

namespace orrery::executor {

class PredictedTimes {
 public:
  using Clock = std::chrono::steady_clock;

  /// `ps`: of every operation of a step, in issue order. On CUDA 8 bytes each lie on the device.
  PredictedTimes(std::vector<std::int64_t> ps, c10::Device device);

  /// Operation `number` is next.
  void at(std::size_t number);
  /// Its work is issued from here on. Of several calls the first counts. Error: kDevice.
  base::Result<void> begin();
  /// On CUDA the current stream waits for the operation's end from here on. Error: kDevice.
  base::Result<void> end();
  /// On the CPU: when the operation ends; on CUDA now, for the stream waits.
  [[nodiscard]] Clock::time_point end_on_host() const;

 private:
  std::vector<std::int64_t> ps_;
  c10::Device device_;
  at::Tensor begins_;  // [operation] on CUDA: the device's nanoseconds
  std::size_t number_ = 0;
  bool begun_ = false;
  Clock::time_point begin_;
};

/// The host waits until then.
void wait_until(PredictedTimes::Clock::time_point end);

}  // namespace orrery::executor
