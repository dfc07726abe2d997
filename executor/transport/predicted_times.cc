#include "executor/transport/predicted_times.h"

#include <ATen/ops/zeros.h>

#include <thread>
#include <utility>

#include "base/numbers.h"
#include "executor/device/timed_wait.h"
#include "executor/state/device.h"

namespace orrery::executor {

namespace {

constexpr std::int64_t kPsPerNs = 1000;

base::Result<void> launched(const char* fault) {
  if (fault == nullptr) return {};
  return base::fail(base::ErrorCode::kDevice, "a timed wait: {}", fault);
}

}  // namespace

PredictedTimes::PredictedTimes(std::vector<std::int64_t> ps, c10::Device device)
    : ps_(std::move(ps)), device_(device) {
  if (device_.is_cpu()) return;
  begins_ = at::zeros({static_cast<std::int64_t>(ps_.size())},
                      at::TensorOptions().dtype(at::kLong).device(device_));
}

void PredictedTimes::at(std::size_t number) {
  number_ = number;
  begun_ = false;
}

base::Result<void> PredictedTimes::begin() {
  if (begun_) return {};
  begun_ = true;
  begin_ = Clock::now();
  if (device_.is_cpu()) return {};
  return launched(device::store_time(cuda_current_stream(device_.index()),
                                     begins_.mutable_data_ptr<std::int64_t>() + number_));
}

base::Result<void> PredictedTimes::end() {
  if (device_.is_cpu()) return {};
  return launched(device::wait_since(cuda_current_stream(device_.index()),
                                     begins_.const_data_ptr<std::int64_t>() + number_,
                                     ceil_div(ps_[number_], kPsPerNs)));
}

PredictedTimes::Clock::time_point PredictedTimes::end_on_host() const {
  if (!device_.is_cpu()) return begin_;
  return begin_ + std::chrono::nanoseconds(ceil_div(ps_[number_], kPsPerNs));
}

void wait_until(PredictedTimes::Clock::time_point end) {
  // a sleep ends some 60 us late: the rest is spent awake
  constexpr auto kAwake = std::chrono::microseconds(200);
  std::this_thread::sleep_until(end - kAwake);
  while (PredictedTimes::Clock::now() < end) std::this_thread::yield();
}

}  // namespace orrery::executor
