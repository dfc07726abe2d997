#include "tests/support/fake_gpu/fake_cuda.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "tests/support/fake_gpu/faults.h"

namespace orrery::tests::fake {
namespace {

// One lock for all: few streams, and nothing runs under it.
struct Device {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<const void*> streams;
};
Device& device() {
  static Device* const made = new Device;  // threads may outlive static objects
  return *made;
}

struct Event {
  std::uint64_t recorded = 0, passed = 0;
};
using EventHandle = std::shared_ptr<Event>;

struct Stream {
  std::deque<std::function<void()>> work;
  bool busy = false, ends = false;
  std::thread thread;

  void run() {
    Device& d = device();
    std::unique_lock lock(d.mutex);
    for (;;) {
      d.changed.wait(lock, [&] { return !work.empty() || ends; });
      if (work.empty()) return;
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      next();
      lock.lock();
      busy = false;
      d.changed.notify_all();
    }
  }
};

Stream* stream_of(cudaStream_t stream) { return reinterpret_cast<Stream*>(stream); }
EventHandle event_of(cudaEvent_t event) { return *reinterpret_cast<EventHandle*>(event); }

void wait_for(const EventHandle& event, std::uint64_t record) {
  std::unique_lock lock(device().mutex);
  device().changed.wait(lock, [&] { return event->passed >= record; });
}

cudaError_t injected(const char* call) {
  const Fault fault = fault_at(call);
  if (fault == Fault::kOutOfMemory) return cudaErrorMemoryAllocation;
  return fault == Fault::kNone ? cudaSuccess : cudaErrorLaunchFailure;
}

}  // namespace

bool enqueue(cudaStream_t stream, std::function<void()> work) {
  Device& d = device();
  const std::lock_guard lock(d.mutex);
  if (!d.streams.contains(stream)) return false;
  stream_of(stream)->work.push_back(std::move(work));
  d.changed.notify_all();
  return true;
}

}  // namespace orrery::tests::fake

using namespace orrery::tests::fake;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (const cudaError_t code = injected("cudaStreamCreateWithFlags")) return code;
  auto* made = new Stream;
  made->thread = std::thread([made] { made->run(); });
  const std::lock_guard lock(device().mutex);
  device().streams.insert(made);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Stream* s = stream_of(stream);
  {
    const std::lock_guard lock(device().mutex);
    if (device().streams.erase(s) == 0) return cudaErrorInvalidResourceHandle;
    s->ends = true;
    device().changed.notify_all();
  }
  s->thread.join();
  delete s;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t code = injected("cudaStreamSynchronize")) return code;
  std::unique_lock lock(device().mutex);
  if (!device().streams.contains(stream)) return cudaErrorInvalidResourceHandle;
  const Stream* s = stream_of(stream);
  device().changed.wait(lock, [&] { return s->work.empty() && !s->busy; });
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const cudaError_t code = injected("cudaStreamWaitEvent")) return code;
  const EventHandle e = event_of(event);
  std::uint64_t record = 0;
  {
    const std::lock_guard lock(device().mutex);
    record = e->recorded;  // later records do not count
  }
  return enqueue(stream, [e, record] { wait_for(e, record); }) ? cudaSuccess
                                                               : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (const cudaError_t code = injected("cudaEventCreateWithFlags")) return code;
  *event = reinterpret_cast<cudaEvent_t>(new EventHandle(std::make_shared<Event>()));
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<EventHandle*>(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t code = injected("cudaEventRecord")) return code;
  const EventHandle e = event_of(event);
  std::uint64_t record = 0;
  {
    const std::lock_guard lock(device().mutex);
    record = ++e->recorded;
  }
  const bool known = enqueue(stream, [e, record] {
    const std::lock_guard lock(device().mutex);
    e->passed = std::max(e->passed, record);
    device().changed.notify_all();
  });
  return known ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const EventHandle e = event_of(event);
  const std::lock_guard lock(device().mutex);
  return e->passed >= e->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t code = injected("cudaEventSynchronize")) return code;
  const EventHandle e = event_of(event);
  std::unique_lock lock(device().mutex);
  const std::uint64_t record = e->recorded;
  device().changed.wait(lock, [&] { return e->passed >= record; });
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    default: return "unspecified launch failure";
  }
}

}  // extern "C"
