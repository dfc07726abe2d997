#pragma once
/// Faults of the stand-ins for CUDA and NCCL, stated by ORRERY_FAKE_FAULT =
/// "<rank> <call> <n> <what> [milliseconds]": the n-th call (from 1) of that name on that rank
///
///   fail    returns an error            oom     returns that memory is short
///   delay   works, later on its stream  drop    is lost: its stream goes on, no peer hears of it
///   async   is lost, and its stream waits until the communicator is aborted, whose state tells why
///   stop    keeps the calling thread    kill    ends the process by SIGKILL
#include <chrono>
#include <string_view>

namespace orrery::tests::fake {

enum class Fault { kNone, kFail, kOutOfMemory, kDelay, kDrop, kAsync };

/// Counts the call; what befalls it. Stops or ends this thread or process itself.
Fault fault_at(std::string_view call);
/// Of a delay.
std::chrono::milliseconds delay();

}  // namespace orrery::tests::fake
