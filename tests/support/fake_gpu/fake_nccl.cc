/// NCCL between processes of one host over shared memory, by the same symbols. What blocks in NCCL
/// blocks here: a communicator runs one operation at a time in the order of issue, messages above
/// the rings wait for their receivers, a lost peer is waited for until ncclCommAbort.
#include <nccl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fake_gpu/fake_cuda.h"
#include "tests/support/fake_gpu/faults.h"
#include "tests/support/fake_gpu/shared_rings.h"

namespace orrery::tests::fake {
namespace {

struct Comm {
  Comm(std::string own_name, int own_rank, int size)
      : name(std::move(own_name)), rank(own_rank), ranks(size), rings(name, own_rank, size) {}
  std::string name;
  int rank, ranks, splits = 0;
  SharedRings rings;
  std::atomic<bool> aborted = false;
  std::atomic<ncclResult_t> state = ncclSuccess;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t issued = 0, ended = 0;
};
using CommHandle = std::shared_ptr<Comm>;

std::string& last_error() {
  thread_local std::string text;
  return text;
}
ncclResult_t refuse(ncclResult_t code, std::string why) {
  last_error() = std::move(why);
  return code;
}

CommHandle comm_of(ncclComm_t comm) { return *reinterpret_cast<CommHandle*>(comm); }
ncclComm_t handle_of(CommHandle comm) {
  return reinterpret_cast<ncclComm_t>(new CommHandle(std::move(comm)));
}

/// Until all messages have gone, or the communicator is aborted: then false.
bool move_all(Comm& comm, std::vector<Message>& messages) {
  while (!std::ranges::all_of(messages, SharedRings::ended)) {
    if (comm.aborted) return false;
    try {
      if (!comm.rings.progress(messages))
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    } catch (const std::length_error&) {
      comm.state = ncclInvalidUsage;
      while (!comm.aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return true;
}

/// One operation of a communicator on a stream: after those issued before on both.
ncclResult_t issue(const char* call, const CommHandle& comm, cudaStream_t stream,
                   std::function<void(Comm&)> run) {
  const Fault fault = fault_at(call);
  if (fault == Fault::kFail) return refuse(ncclInternalError, "injected");
  if (fault == Fault::kOutOfMemory) return refuse(ncclUnhandledCudaError, "out of memory");
  const std::uint64_t turn = comm->issued++;
  const bool known = enqueue(stream, [comm, turn, fault, run = std::move(run)] {
    std::unique_lock lock(comm->mutex);
    comm->changed.wait(lock, [&] { return comm->ended == turn; });
    lock.unlock();
    if (fault == Fault::kDelay) std::this_thread::sleep_for(delay());
    if (fault == Fault::kAsync) {
      comm->state = ncclRemoteError;
      while (!comm->aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else if (fault != Fault::kDrop) {
      run(*comm);
    }
    lock.lock();
    ++comm->ended;
    comm->changed.notify_all();
  });
  return known ? ncclSuccess : refuse(ncclInvalidArgument, "no such stream");
}

// ---- point to point, alone or in a group ----
struct Call {
  CommHandle comm;
  cudaStream_t stream = nullptr;
  Message message;
};
thread_local int group_depth = 0;
thread_local std::vector<Call> group_calls;

/// What a group has for one communicator is one operation.
ncclResult_t launch_group() {
  std::vector<Call> calls = std::exchange(group_calls, {});
  ncclResult_t code = ncclSuccess;
  while (!calls.empty() && code == ncclSuccess) {
    const CommHandle comm = calls.front().comm;
    const cudaStream_t stream = calls.front().stream;
    std::vector<Message> messages;
    for (const Call& c : calls)
      if (c.comm == comm) messages.push_back(c.message);
    std::erase_if(calls, [&](const Call& c) { return c.comm == comm; });
    code = issue("group", comm, stream, [messages](Comm& at) mutable { move_all(at, messages); });
  }
  return code;
}

ncclResult_t transfer(const char* call, const Call& made) {
  const Fault fault = fault_at(call);
  if (fault == Fault::kFail) return refuse(ncclInternalError, "injected");
  if (fault == Fault::kOutOfMemory) return refuse(ncclUnhandledCudaError, "out of memory");
  if (made.message.peer < 0 || made.message.peer >= made.comm->ranks)
    return refuse(ncclInvalidArgument, "no such peer");
  if (fault != Fault::kDrop) group_calls.push_back(made);
  return group_depth > 0 ? ncclSuccess : launch_group();
}

// ---- collectives: everybody sends to everybody ----
std::size_t element_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32: return 4;
    case ncclBfloat16: return 2;
    case ncclInt64: return 8;
    default: throw std::invalid_argument("a type that the stand-in does not know");
  }
}

float widen(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
std::uint16_t narrow(float value) {  // to nearest, ties to even
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class T>
void reduce_as(std::byte* into, const std::byte* from, std::size_t n, bool sum) {
  auto* a = reinterpret_cast<T*>(into);
  const auto* b = reinterpret_cast<const T*>(from);
  for (std::size_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<T, std::uint16_t>)
      a[i] = narrow(sum ? widen(a[i]) + widen(b[i]) : std::max(widen(a[i]), widen(b[i])));
    else
      a[i] = sum ? a[i] + b[i] : std::max(a[i], b[i]);
  }
}
void reduce(ncclDataType_t type, std::byte* into, const std::byte* from, std::size_t n, bool sum) {
  if (type == ncclFloat32) return reduce_as<float>(into, from, n, sum);
  if (type == ncclBfloat16) return reduce_as<std::uint16_t>(into, from, n, sum);
  reduce_as<std::int64_t>(into, from, n, sum);
}

std::byte* bytes_at(const void* data, std::size_t offset = 0) {
  return static_cast<std::byte*>(const_cast<void*>(data)) + offset;
}

/// Slot j of `in` (all of it when `in` is one slot) goes to rank j; the result is the sum of what
/// comes, in order of ranks, so that it is the same everywhere.
void reduce_slots(Comm& comm, const void* in, bool slots, std::size_t count, ncclDataType_t type,
                  bool sum, std::byte* out) {
  const std::size_t bytes = count * element_bytes(type);
  std::vector<std::vector<std::byte>> parts(static_cast<std::size_t>(comm.ranks),
                                            std::vector<std::byte>(bytes));
  std::vector<Message> messages;
  for (int r = 0; r < comm.ranks; ++r) {
    const auto slot = static_cast<std::size_t>(r);
    messages.push_back({true, r, bytes_at(in, slots ? slot * bytes : 0), bytes});
    messages.push_back({false, r, parts[slot].data(), bytes});
  }
  if (!move_all(comm, messages)) return;
  for (std::size_t r = 1; r < parts.size(); ++r)
    reduce(type, parts[0].data(), parts[r].data(), count, sum);
  std::memcpy(out, parts[0].data(), bytes);
}

ncclResult_t make_comm(const char* call, ncclComm_t* comm, const std::string& name, int rank,
                       int ranks) {
  const Fault fault = fault_at(call);
  if (fault == Fault::kFail) return refuse(ncclSystemError, "injected");
  if (fault == Fault::kOutOfMemory) return refuse(ncclUnhandledCudaError, "out of memory");
  *comm = handle_of(std::make_shared<Comm>(name, rank, ranks));
  return ncclSuccess;
}

}  // namespace
}  // namespace orrery::tests::fake

using namespace orrery::tests::fake;

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  const std::string name = "rings-" + std::to_string(random()) + std::to_string(random());
  std::memset(id->internal, 0, sizeof id->internal);
  name.copy(id->internal, sizeof id->internal - 1);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return make_comm("ncclCommInitRank", comm, id.internal, rank, ranks);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t*) {
  const CommHandle parent = comm_of(comm);
  // Everybody learns all colours and keys.
  std::array<int, 2> own{color, key};
  std::vector<std::array<int, 2>> all(static_cast<std::size_t>(parent->ranks));
  std::vector<Message> messages;
  for (int r = 0; r < parent->ranks; ++r) {
    messages.push_back({true, r, bytes_at(&own), sizeof own});
    messages.push_back({false, r, bytes_at(&all[static_cast<std::size_t>(r)]), sizeof own});
  }
  if (!move_all(*parent, messages)) return refuse(ncclInternalError, "aborted");
  const std::string name =
      parent->name + "." + std::to_string(parent->splits++) + "." + std::to_string(color);
  *made = nullptr;
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int r = 0; r < parent->ranks; ++r) {
    const auto& [its_color, its_key] = all[static_cast<std::size_t>(r)];
    if (its_color == color) members.emplace_back(its_key, r);
  }
  std::ranges::sort(members);
  const auto place = std::ranges::find(members, std::pair(key, parent->rank));
  return make_comm("ncclCommSplit", made, name, static_cast<int>(place - members.begin()),
                   static_cast<int>(members.size()));
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm_of(comm)->aborted = true;
  delete reinterpret_cast<CommHandle*>(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const CommHandle c = comm_of(comm);
  std::unique_lock lock(c->mutex);
  c->changed.wait(lock, [&] { return c->ended == c->issued; });
  delete reinterpret_cast<CommHandle*>(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm_of(comm)->state;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t code) {
  switch (code) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidUsage: return "invalid usage";
    case ncclInvalidArgument: return "invalid argument";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "internal error";
  }
}
const char* ncclGetLastError(ncclComm_t) { return last_error().c_str(); }

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return refuse(ncclInvalidUsage, "no group");
  return --group_depth > 0 ? ncclSuccess : launch_group();
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return transfer(
      "ncclSend",
      {comm_of(comm), stream, {true, peer, bytes_at(data), count * element_bytes(type)}});
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return transfer(
      "ncclRecv",
      {comm_of(comm), stream, {false, peer, bytes_at(data), count * element_bytes(type)}});
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return issue("ncclAllReduce", comm_of(comm), stream, [=](Comm& c) {
    reduce_slots(c, in, false, count, type, op == ncclSum, bytes_at(out));
  });
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return issue("ncclReduceScatter", comm_of(comm), stream, [=](Comm& c) {
    reduce_slots(c, in, true, count, type, op == ncclSum, bytes_at(out));
  });
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue("ncclAllGather", comm_of(comm), stream, [=](Comm& c) {
    const std::size_t bytes = count * element_bytes(type);
    const std::vector<std::byte> own(bytes_at(in), bytes_at(in, bytes));  // may lie in `out`
    std::vector<Message> messages;
    for (int r = 0; r < c.ranks; ++r) {
      messages.push_back({true, r, bytes_at(own.data()), bytes});
      messages.push_back({false, r, bytes_at(out, static_cast<std::size_t>(r) * bytes), bytes});
    }
    move_all(c, messages);
  });
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue("ncclBroadcast", comm_of(comm), stream, [=](Comm& c) {
    const std::size_t bytes = count * element_bytes(type);
    std::vector<Message> messages;
    if (c.rank != root) messages.push_back({false, root, bytes_at(out), bytes});
    for (int r = 0; r < c.ranks && c.rank == root; ++r)
      if (r != root) messages.push_back({true, r, bytes_at(in), bytes});
    move_all(c, messages);
    if (c.rank == root && in != out) std::memcpy(out, in, bytes);
  });
}

}  // extern "C"
