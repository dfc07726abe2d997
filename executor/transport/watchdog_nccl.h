#pragma once
/// Sees to it that no rank waits for ever, from a thread of its own beside each rank's.
///
/// Every kTick it looks at the operations that its streams have passed; every kBeat at the
/// asynchronous errors of the rank's communicators and at the store, where it writes since when the
/// rank stands where, and reads whether a rank has failed and whether the next rank still writes.
/// What it finds first becomes the failure of the job, the same for all ranks: `failure` in the
/// store, set once. Then it aborts the communicators, so that whatever waits for them ends; a rank
/// that does not come out of its wait within kGrace is ended by `stuck`.
///
/// Who stood still first is known by the hosts' clocks, so as well as they agree.
#include <ATen/core/Tensor.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "executor/transport/place.h"
#include "executor/transport/store.h"

namespace orrery::executor {

class Watchdog {
 public:
  using Clock = std::chrono::system_clock;
  static constexpr auto kTick = std::chrono::milliseconds(25), kBeat = 10 * kTick;
  static constexpr auto kSilence = std::chrono::seconds(6);  // of a rank that has gone
  static constexpr auto kGrace = std::chrono::seconds(2);

  /// `stall`: how long a rank may stand at one operation.
  Watchdog(int rank, int ranks, Store store, std::chrono::seconds stall);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// The rank leaves the job; nobody misses it.
  void stop();
  /// The rank's own thread comes to an operation.
  void at(const Place& place);
  /// It waits for other ranks, not for its own work; null: no longer.
  void waits_for(const char* what);
  void watch(ncclComm_t comm);
  /// Keeps `tensors` until `stream` has passed what was issued on it. Errors: kDevice, the failure.
  base::Result<void> issued(cudaStream_t stream, std::vector<at::Tensor> tensors);
  /// Once some rank has failed: why.
  base::Result<void> healthy() const;
  /// What this rank failed of becomes the failure of the job, unless it is a consequence of one.
  void report(const base::Diagnostics& diagnostics);
  /// Of the rank that serves the store, before it goes: until the others have read the failure, or
  /// for kGrace.
  void await_readers();
  void when_stuck(std::function<void(const base::Diagnostics&)> stuck);
  /// While held, communicators are not aborted: between healthy() and the call that uses one.
  [[nodiscard]] std::unique_lock<std::timed_mutex> using_communicators() {
    return std::unique_lock(in_use_);
  }

 private:
  struct Flight {
    cudaEvent_t passed = nullptr;
    Clock::time_point issued;
    Place place;
    std::vector<at::Tensor> tensors;
  };
  struct Status {
    bool waits = false;  // for other ranks
    Clock::time_point since{};
    std::string place;
  };

  void run();
  void end_by(const std::string& why);
  std::optional<std::string> look();
  base::Result<void> write_beat(const Status& own);
  std::optional<std::string> asynchronous_error();
  std::optional<std::string> lost_peer(const Status& own);
  std::optional<std::string> stalled(const Status& own);
  Status status();
  std::optional<Status> status_of(int rank);
  // @pre mutex_
  bool passed(const Flight& flight);
  void retire();
  void fail(std::string why, bool publish);

  const int rank_, ranks_;
  Store store_;
  const std::chrono::seconds stall_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable ends_;
  bool ended_ = false;
  Place place_;
  const char* waits_for_ = nullptr;
  std::deque<Flight> flights_;
  std::vector<cudaEvent_t> spare_;
  Clock::time_point moved_ = Clock::now(), looked_ = moved_;
  std::vector<ncclComm_t> comms_;
  std::string failure_;
  std::function<void(const base::Diagnostics&)> stuck_;

  std::timed_mutex in_use_;
  // of the thread alone
  std::int64_t beats_ = 0;
  std::string peer_beat_;
  Clock::time_point peer_seen_ = Clock::now();
  std::thread thread_;
};

}  // namespace orrery::executor
