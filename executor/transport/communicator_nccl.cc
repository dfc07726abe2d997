/// CUDA tensors over NCCL: one communicator and one CUDA stream per channel, and one of each for
/// exchanges.
///
/// Before an operation its stream waits for the current stream (operands are ready), after it the
/// current stream waits for it (results may be used): a rank's operations stay in program order,
/// and communication overlaps only what the caller issued before. Tensors are recorded on the
/// stream, so that their memory is not handed out again too early.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/numbers.h"
#include "executor/state/tensor.h"
#include "executor/transport/communicator.h"
#include "executor/transport/store.h"

namespace orrery::executor {

using base::ErrorCode;

namespace {

base::Result<void> check(ncclResult_t code, const char* what) {
  if (code == ncclSuccess) return {};
  return base::fail(ErrorCode::kCollective, "{}: {} ({})", what, ncclGetErrorString(code),
                    ncclGetLastError(nullptr));
}
base::Result<void> check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  return base::fail(ErrorCode::kDevice, "{}: {}", what, cudaGetErrorString(code));
}

ncclDataType_t type_of(const at::Tensor& tensor) {
  switch (dtype_of(tensor)) {
    case model::DType::kFloat32: return ncclFloat32;
    case model::DType::kBFloat16: return ncclBfloat16;
    case model::DType::kInt64: return ncclInt64;
    default: break;
  }
  ORRERY_CHECK(false, "dtype");
}
std::size_t count_of(const at::Tensor& tensor) { return as_index(tensor.numel()); }

/// One communicator with its stream, and the two waits around each operation.
class Line {
 public:
  Line(ncclComm_t comm, c10::cuda::CUDAStream stream) : comm_(comm), stream_(stream) {
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
  }
  ~Line() {
    cudaEventDestroy(event_);
    ncclCommDestroy(comm_);
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  [[nodiscard]] ncclComm_t comm() const { return comm_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_.stream(); }

  base::Result<void> begin(std::initializer_list<at::Tensor> tensors) {
    for (const at::Tensor& t : tensors)
      c10::cuda::CUDACachingAllocator::recordStream(t.storage().data_ptr(), stream_);
    TRY_VOID(check(cudaEventRecord(event_, c10::cuda::getCurrentCUDAStream().stream()), "event"));
    return check(cudaStreamWaitEvent(stream(), event_, 0), "event");
  }
  base::Result<void> end() {
    TRY_VOID(check(cudaEventRecord(event_, stream()), "event"));
    return check(cudaStreamWaitEvent(c10::cuda::getCurrentCUDAStream().stream(), event_, 0),
                 "event");
  }

 private:
  ncclComm_t comm_;
  c10::cuda::CUDAStream stream_;
  cudaEvent_t event_{};
};

/// Ends when the stream has passed the event.
class NcclTransfer final : public Transfer {
 public:
  NcclTransfer(std::vector<TransferLeg> legs, cudaStream_t stream) : legs_(std::move(legs)) {
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    cudaEventRecord(event_, stream);
  }
  ~NcclTransfer() override { cudaEventDestroy(event_); }
  base::Result<bool> test() override {
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) return false;
    TRY_VOID(check(code, "transfer"));
    return true;
  }
  base::Result<void> wait() override {
    return check(cudaStreamWaitEvent(c10::cuda::getCurrentCUDAStream().stream(), event_, 0),
                 "transfer");
  }

 private:
  std::vector<TransferLeg> legs_;
  cudaEvent_t event_{};
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const Launch& launch, Store store)
      : store_(std::move(store)), device_(c10::cuda::current_device()) {
    rank_ = launch.rank;
    world_size_ = launch.world_size;
  }

  base::Result<Channel> channel(std::span<const int> ranks, plan::Stream stream) override {
    std::string key = std::to_string(as_int(stream));
    Channel c{.id = -1, .index = 0, .size = as_int(ranks.size())};
    for (const int r : ranks) key += "." + std::to_string(r);
    while (ranks[as_index(c.index)] != rank_) ++c.index;
    if (const auto known = known_.find(key); known != known_.end()) {
      c.id = known->second;
      return c;
    }
    TRY(std::unique_ptr<Line> line, open_line(key, c.index, c.size));
    c.id = as_int(lines_.size());
    lines_.push_back(std::move(line));
    known_.emplace(key, c.id);
    return c;
  }

  base::Result<void> all_reduce(const Channel& c, at::Tensor& t, plan::Reduce reduce) override {
    return on(c, "all_reduce", {t}, [&](Line& l) {
      return ncclAllReduce(t.const_data_ptr(), t.mutable_data_ptr(), count_of(t), type_of(t),
                           reduce == plan::Reduce::kSum ? ncclSum : ncclMax, l.comm(), l.stream());
    });
  }
  base::Result<void> all_gather(const Channel& c, const at::Tensor& part, at::Tensor& whole,
                                int dim) override {
    const Slots slots = slots_of(whole, dim, c.size);
    // NCCL gathers along dimension 0: another dimension goes through a packed copy.
    at::Tensor packed =
        slots.outer == 1 ? whole : at::empty({c.size, slots.outer, slots.inner}, whole.options());
    TRY_VOID(on(c, "all_gather", {part, packed}, [&](Line& l) {
      return ncclAllGather(part.const_data_ptr(), packed.mutable_data_ptr(), count_of(part),
                           type_of(part), l.comm(), l.stream());
    }));
    if (slots.outer != 1)
      whole.view({slots.outer, c.size, slots.inner}).copy_(packed.transpose(0, 1));
    return {};
  }
  base::Result<void> reduce_scatter(const Channel& c, const at::Tensor& whole, at::Tensor& part,
                                    int dim) override {
    const Slots slots = slots_of(whole, dim, c.size);
    const at::Tensor packed =
        slots.outer == 1
            ? whole
            : whole.view({slots.outer, c.size, slots.inner}).transpose(0, 1).contiguous();
    return on(c, "reduce_scatter", {packed, part}, [&](Line& l) {
      return ncclReduceScatter(packed.const_data_ptr(), part.mutable_data_ptr(), count_of(part),
                               type_of(part), ncclSum, l.comm(), l.stream());
    });
  }
  base::Result<void> all_to_all(const Channel& c, const at::Tensor& in, at::Tensor& out) override {
    const std::size_t block = count_of(in) / as_index(c.size), bytes = block * in.element_size();
    return on(c, "all_to_all", {in, out}, [&](Line& l) {
      ncclGroupStart();
      for (int i = 0; i < c.size; ++i) {
        const std::size_t at = as_index(i) * bytes;
        ncclSend(static_cast<const char*>(in.const_data_ptr()) + at, block, type_of(in), i,
                 l.comm(), l.stream());
        ncclRecv(static_cast<char*>(out.mutable_data_ptr()) + at, block, type_of(out), i, l.comm(),
                 l.stream());
      }
      return ncclGroupEnd();
    });
  }
  base::Result<void> shift(const Channel& c, const at::Tensor& in, at::Tensor& out) override {
    return on(c, "shift", {in, out}, [&](Line& l) {
      ncclGroupStart();
      ncclSend(in.const_data_ptr(), count_of(in), type_of(in), (c.index + 1) % c.size, l.comm(),
               l.stream());
      ncclRecv(out.mutable_data_ptr(), count_of(out), type_of(out), (c.index + c.size - 1) % c.size,
               l.comm(), l.stream());
      return ncclGroupEnd();
    });
  }
  base::Result<void> broadcast(const Channel& c, at::Tensor& t, int root_index) override {
    return on(c, "broadcast", {t}, [&](Line& l) {
      return ncclBroadcast(t.const_data_ptr(), t.mutable_data_ptr(), count_of(t), type_of(t),
                           root_index, l.comm(), l.stream());
    });
  }

  base::Result<std::unique_ptr<Transfer>> post(std::vector<TransferLeg> legs) override {
    std::vector<Line*> lines;
    for (const TransferLeg& leg : legs) {
      TRY(Line * line, pair_line(leg));
      TRY_VOID(line->begin({leg.tensor}));
      lines.push_back(line);
    }
    ncclGroupStart();
    for (std::size_t i = 0; i < legs.size(); ++i) {
      const TransferLeg& leg = legs[i];
      const int peer = leg.peer < rank_ ? 0 : 1;
      if (leg.send)
        ncclSend(leg.tensor.const_data_ptr(), count_of(leg.tensor), type_of(leg.tensor), peer,
                 lines[i]->comm(), lines[i]->stream());
      else
        ncclRecv(leg.tensor.mutable_data_ptr(), count_of(leg.tensor), type_of(leg.tensor), peer,
                 lines[i]->comm(), lines[i]->stream());
    }
    TRY_VOID(check(ncclGroupEnd(), "exchange"));
    for (Line* line : lines) {
      if (line != lines.back()) TRY_VOID(line->end());
    }
    const cudaStream_t last = lines.back()->stream();
    return std::make_unique<NcclTransfer>(std::move(legs), last);
  }

  base::Result<void> barrier() override {
    TRY_VOID(gather(""));
    TRY_VOID(broadcast(std::string()));
    return {};
  }
  base::Result<std::vector<std::string>> gather(const std::string& text) override {
    const std::string key = "gather/" + std::to_string(gathers_++) + "/";
    std::vector<std::string> texts;
    if (rank_ != 0) {
      TRY_VOID(store_.set(key + std::to_string(rank_), text));
      return texts;
    }
    texts.push_back(text);
    for (int r = 1; r < world_size_; ++r) {
      TRY(std::string other, store_.get(key + std::to_string(r)));
      texts.push_back(std::move(other));
    }
    return texts;
  }
  base::Result<std::string> broadcast(const std::string& text) override {
    const std::string key = "broadcast/" + std::to_string(broadcasts_++);
    if (rank_ != 0) return store_.get(key);
    TRY_VOID(store_.set(key, text));
    return text;
  }
  void abort(int) override {}  // torchrun ends the others when this process ends

 private:
  template <class Call>
  base::Result<void> on(const Channel& c, const char* what,
                        std::initializer_list<at::Tensor> tensors, Call call) {
    Line& line = *lines_[as_index(c.id)];
    TRY_VOID(line.begin(tensors));
    TRY_VOID(check(call(line), what));
    return line.end();
  }

  /// The first rank of a group makes the id, the others read it under the group's key.
  base::Result<std::unique_ptr<Line>> open_line(const std::string& key, int index, int size) {
    ncclUniqueId id;
    if (index == 0) {
      TRY_VOID(check(ncclGetUniqueId(&id), "ncclGetUniqueId"));
      TRY_VOID(store_.set("nccl/" + key, std::string(id.internal, sizeof id.internal)));
    } else {
      TRY(const std::string bytes, store_.get("nccl/" + key));
      std::memcpy(id.internal, bytes.data(), std::min(bytes.size(), sizeof id.internal));
    }
    ncclComm_t comm = nullptr;
    TRY_VOID(check(ncclCommInitRank(&comm, size, id, index), "ncclCommInitRank"));
    return std::make_unique<Line>(comm, c10::cuda::getStreamFromPool(false, device_));
  }

  /// Two ranks and a lane share a communicator of two: lower rank first.
  base::Result<Line*> pair_line(const TransferLeg& leg) {
    const int low = std::min(leg.peer, rank_), high = std::max(leg.peer, rank_);
    const std::string key =
        "pair/" + std::to_string(leg.lane) + "/" + std::to_string(low) + "." + std::to_string(high);
    if (const auto known = pairs_.find(key); known != pairs_.end()) return known->second.get();
    TRY(std::unique_ptr<Line> line, open_line(key, rank_ == low ? 0 : 1, 2));
    return pairs_.emplace(key, std::move(line)).first->second.get();
  }

  Store store_;
  c10::DeviceIndex device_;
  std::int64_t gathers_ = 0, broadcasts_ = 0;
  std::vector<std::unique_ptr<Line>> lines_;
  std::map<std::string, int> known_;
  std::map<std::string, std::unique_ptr<Line>> pairs_;
};

}  // namespace

base::Result<std::unique_ptr<Communicator>> make_nccl_communicator(const Launch& launch) {
  TRY(Store store, Store::connect(launch));
  return std::make_unique<NcclCommunicator>(launch, std::move(store));
}

}  // namespace orrery::executor
