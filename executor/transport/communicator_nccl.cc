/// CUDA tensors over NCCL: one communicator per channel, and for exchanges one per pair of ranks,
/// lane and direction. With one for both directions, two ranks that each send before they receive
/// (interleaved stages) would wait for each other as soon as messages exceed NCCL's buffers.
///
/// Operations are issued on the current stream of CudaStreams and left; results may be used by what
/// is issued on it afterwards. The legs of one exchange run beside each other on streams of their
/// own, between what the current stream has before and after. A watchdog sees that nothing waits
/// for ever.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "base/numbers.h"
#include "base/text.h"
#include "executor/launch/rendezvous.h"
#include "executor/state/tensor.h"
#include "executor/transport/checks_nccl.h"
#include "executor/transport/communicator.h"
#include "executor/transport/store.h"
#include "executor/transport/streams_cuda.h"
#include "executor/transport/watchdog_nccl.h"

namespace orrery::executor {

using base::ErrorCode;

base::Result<void> check(ncclResult_t code, const char* what) {
  if (code == ncclSuccess) return {};
  return base::fail(base::ErrorCode::kCollective, "{}: {} ({})", what, ncclGetErrorString(code),
                    ncclGetLastError(nullptr));
}

namespace {

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

/// A communicator; for a direction between two ranks also the stream that its legs run on beside
/// others, and the events that order it.
struct Line {
  ncclComm_t comm = nullptr;
  cudaStream_t side = nullptr;
  cudaEvent_t before = nullptr, after = nullptr;
};

/// Nothing is left to do: the stream of the operation orders what follows.
class IssuedTransfer final : public Transfer {
 public:
  base::Result<bool> test() override { return true; }
  base::Result<void> wait() override { return {}; }
};

constexpr auto kLeaving = std::chrono::seconds(30);

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const Launch& launch, Store store, std::unique_ptr<CudaStreams> streams,
                   std::unique_ptr<Watchdog> watchdog)
      : store_(std::move(store)), streams_(std::move(streams)), watchdog_(std::move(watchdog)) {
    rank_ = launch.rank;
    world_size_ = launch.world_size;
  }
  ~NcclCommunicator() override {
    watchdog_->stop();
    if (!watchdog_->healthy()) return;  // aborted; the process ends
    leave_together();
    for (const Line& line : lines_) close(line);
    for (const auto& [key, line] : pairs_) close(line);
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
    TRY(const Line line, open_line(key, {ranks.begin(), ranks.end()}));
    c.id = as_int(lines_.size());
    lines_.push_back(line);
    known_.emplace(key, c.id);
    return c;
  }
  base::Result<void> open_pair(int peer, int lane, bool sends) override {
    TRY_VOID(pair_line(peer, lane, sends));
    return {};
  }

  Streams* streams() override { return streams_.get(); }
  void at(const Place& place) override { watchdog_->at(place); }
  void report(const base::Diagnostics& diagnostics) override { watchdog_->report(diagnostics); }
  void when_stuck(std::function<void(const base::Diagnostics&)> stuck) override {
    watchdog_->when_stuck(std::move(stuck));
  }
  base::Result<void> healthy() override { return watchdog_->healthy(); }

  base::Result<void> all_reduce(const Channel& c, at::Tensor& t, plan::Reduce reduce) override {
    return on(c, "all_reduce", {t}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(t.const_data_ptr(), t.mutable_data_ptr(), count_of(t), type_of(t),
                           reduce == plan::Reduce::kSum ? ncclSum : ncclMax, comm, stream);
    });
  }
  base::Result<void> all_gather(const Channel& c, const at::Tensor& part, at::Tensor& whole,
                                int dim) override {
    const Slots slots = slots_of(whole, dim, c.size);
    // NCCL gathers along dimension 0: another dimension goes through a packed copy.
    at::Tensor packed =
        slots.outer == 1 ? whole : at::empty({c.size, slots.outer, slots.inner}, whole.options());
    TRY_VOID(on(c, "all_gather", {part, packed}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllGather(part.const_data_ptr(), packed.mutable_data_ptr(), count_of(part),
                           type_of(part), comm, stream);
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
    return on(c, "reduce_scatter", {packed, part}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclReduceScatter(packed.const_data_ptr(), part.mutable_data_ptr(), count_of(part),
                               type_of(part), ncclSum, comm, stream);
    });
  }
  base::Result<void> all_to_all(const Channel& c, const at::Tensor& in, at::Tensor& out) override {
    const std::size_t block = count_of(in) / as_index(c.size),
                      bytes = block * as_index(in.element_size());
    return on(c, "all_to_all", {in, out}, [&](ncclComm_t comm, cudaStream_t stream) {
      Group group;
      for (int i = 0; i < c.size; ++i) {
        const std::size_t at = as_index(i) * bytes;
        group.add(ncclSend(static_cast<const char*>(in.const_data_ptr()) + at, block, type_of(in),
                           i, comm, stream));
        group.add(ncclRecv(static_cast<char*>(out.mutable_data_ptr()) + at, block, type_of(out), i,
                           comm, stream));
      }
      return group.end();
    });
  }
  base::Result<void> shift(const Channel& c, const at::Tensor& in, at::Tensor& out) override {
    const int next = (c.index + 1) % c.size, before = (c.index + c.size - 1) % c.size;
    return on(c, "shift", {in, out}, [&](ncclComm_t comm, cudaStream_t stream) {
      Group group;
      group.add(ncclSend(in.const_data_ptr(), count_of(in), type_of(in), next, comm, stream));
      group.add(
          ncclRecv(out.mutable_data_ptr(), count_of(out), type_of(out), before, comm, stream));
      return group.end();
    });
  }
  base::Result<void> broadcast(const Channel& c, at::Tensor& t, int root_index) override {
    return on(c, "broadcast", {t}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclBroadcast(t.const_data_ptr(), t.mutable_data_ptr(), count_of(t), type_of(t),
                           root_index, comm, stream);
    });
  }

  base::Result<std::unique_ptr<Transfer>> post(std::vector<TransferLeg> legs) override {
    std::vector<Line*> lines;
    std::vector<at::Tensor> tensors;
    for (const TransferLeg& leg : legs) {
      TRY(Line * line, pair_line(leg.peer, leg.lane, leg.send));
      lines.push_back(line);
      tensors.push_back(leg.tensor);
    }
    const cudaStream_t stream = streams_->current();
    const bool beside = legs.size() > 1;
    if (beside)
      for (Line* line : lines) TRY_VOID(join(line->side, line->before, stream));
    {
      const auto in_use = watchdog_->using_communicators();
      TRY_VOID(watchdog_->healthy());
      Group group;
      for (std::size_t i = 0; i < legs.size(); ++i) {
        const at::Tensor& t = legs[i].tensor;
        const int peer = legs[i].peer < rank_ ? 0 : 1;
        const cudaStream_t on = beside ? lines[i]->side : stream;
        group.add(legs[i].send ? ncclSend(t.const_data_ptr(), count_of(t), type_of(t), peer,
                                          lines[i]->comm, on)
                               : ncclRecv(t.mutable_data_ptr(), count_of(t), type_of(t), peer,
                                          lines[i]->comm, on));
      }
      TRY_VOID(check(group.end(), "exchange"));
    }
    if (beside)
      for (Line* line : lines) TRY_VOID(join(stream, line->after, line->side));
    TRY_VOID(settle(std::move(tensors)));
    return std::make_unique<IssuedTransfer>();
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
      TRY(std::string other, get(key + std::to_string(r)));
      texts.push_back(std::move(other));
    }
    return texts;
  }
  base::Result<std::string> broadcast(const std::string& text) override {
    const std::string key = "broadcast/" + std::to_string(broadcasts_++);
    if (rank_ != 0) return get(key);
    TRY_VOID(store_.set(key, text));
    return text;
  }
  // The others know why from the store, as long as its server is there; each ends by itself.
  void abort(int) override {
    if (rank_ == 0) watchdog_->await_readers();
  }

 private:
  /// Calls of one group; its first error is the group's.
  class Group {
   public:
    Group() : code_(ncclGroupStart()) {}
    void add(ncclResult_t code) {
      if (code_ == ncclSuccess) code_ = code;
    }
    ncclResult_t end() {
      const ncclResult_t ended = ncclGroupEnd();
      return code_ == ncclSuccess ? ended : code_;
    }

   private:
    ncclResult_t code_;
  };

  template <class Call>
  base::Result<void> on(const Channel& c, const char* what, std::vector<at::Tensor> tensors,
                        Call call) {
    {
      const auto in_use = watchdog_->using_communicators();
      TRY_VOID(watchdog_->healthy());
      TRY_VOID(check(call(lines_[as_index(c.id)].comm, streams_->current()), what));
    }
    return settle(std::move(tensors));
  }
  /// An operation has been issued on the current stream.
  base::Result<void> settle(std::vector<at::Tensor> tensors) {
    if (tensors.empty()) return {};
    if (!tensors.front().is_cpu())
      tensors.clear();  // who issues keeps them as long as they are used
    TRY_VOID(watchdog_->issued(streams_->current(), std::move(tensors)));
    if (!streams_->host_follows()) return {};
    TRY_VOID(check(cudaStreamSynchronize(streams_->current()), "cudaStreamSynchronize"));
    return watchdog_->healthy();
  }
  /// `stream` waits for what `other` has.
  static base::Result<void> join(cudaStream_t stream, cudaEvent_t event, cudaStream_t other) {
    TRY_VOID(check(cudaEventRecord(event, other), "cudaEventRecord"));
    return check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
  }

  base::Result<std::string> get(const std::string& key) {
    watchdog_->waits_for("at a barrier of all ranks");
    base::Result<std::string> value = store_.get(key, [this] { return watchdog_->healthy(); });
    watchdog_->waits_for(nullptr);
    return value;
  }
  /// Rank 0 serves the store: it goes last, unless the others do not come to their end.
  void leave_together() {
    if (rank_ != 0) {
      std::ignore = store_.set("left/" + std::to_string(rank_), "");
      return;
    }
    const auto until = std::chrono::steady_clock::now() + kLeaving;
    const auto late = [&]() -> base::Result<void> {
      if (std::chrono::steady_clock::now() < until) return {};
      return base::fail(ErrorCode::kCollective, "other ranks stay behind");
    };
    for (int r = 1; r < world_size_; ++r)
      if (!store_.get("left/" + std::to_string(r), late)) return;
  }

  /// A communicator of `ranks`, ascending. The first of them makes the id, the others read it under
  /// the key; another one of the same ranks is split from it, with buffers of its own: shared ones
  /// would make the two take turns, and two directions of a pair wait for each other again.
  base::Result<Line> open_line(const std::string& key, const std::vector<int>& ranks) {
    Line line;
    const auto size = as_int(ranks.size());
    const auto index = as_int(std::ranges::find(ranks, rank_) - ranks.begin());
    if (const auto first = first_of_.find(ranks); first != first_of_.end()) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.splitShare = 0;
      TRY_VOID(check(cudaStreamSynchronize(streams_->current()), "cudaStreamSynchronize"));
      TRY_VOID(opening("ncclCommSplit", [&] {
        return ncclCommSplit(first->second, 0, index, &line.comm, &config);
      }));
    } else {
      TRY(ncclUniqueId id, unique_id(key, index));
      TRY_VOID(opening("ncclCommInitRank",
                       [&] { return ncclCommInitRank(&line.comm, size, id, index); }));
      first_of_.emplace(ranks, line.comm);
    }
    watchdog_->watch(line.comm);
    return line;
  }
  /// Waits for the other ranks of the communicator.
  template <class Call>
  base::Result<void> opening(const char* what, Call call) {
    TRY_VOID(watchdog_->healthy());
    watchdog_->waits_for("opening a communicator");
    const ncclResult_t code = call();
    watchdog_->waits_for(nullptr);
    return check(code, what);
  }
  base::Result<ncclUniqueId> unique_id(const std::string& key, int index) {
    ncclUniqueId id;
    if (index == 0) {
      TRY_VOID(check(ncclGetUniqueId(&id), "ncclGetUniqueId"));
      TRY_VOID(store_.set("nccl/" + key, std::string(id.internal, sizeof id.internal)));
      return id;
    }
    TRY(const std::string bytes, get("nccl/" + key));
    std::memcpy(id.internal, bytes.data(), std::min(bytes.size(), sizeof id.internal));
    return id;
  }

  base::Result<Line*> pair_line(int peer, int lane, bool sends) {
    const int from = sends ? rank_ : peer, to = sends ? peer : rank_;
    const std::string key = fmt::format("pair/{}/{}.{}", lane, from, to);
    if (const auto known = pairs_.find(key); known != pairs_.end()) return &known->second;
    TRY(Line line, open_line(key, {std::min(rank_, peer), std::max(rank_, peer)}));
    TRY_VOID(
        check(cudaStreamCreateWithFlags(&line.side, cudaStreamNonBlocking), "cudaStreamCreate"));
    for (cudaEvent_t* event : {&line.before, &line.after})
      TRY_VOID(check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate"));
    return &pairs_.emplace(key, line).first->second;
  }
  static void close(const Line& line) {
    ncclCommDestroy(line.comm);
    if (line.side == nullptr) return;
    cudaEventDestroy(line.before);
    cudaEventDestroy(line.after);
    cudaStreamDestroy(line.side);
  }

  Store store_;
  std::unique_ptr<CudaStreams> streams_;
  std::unique_ptr<Watchdog> watchdog_;
  std::int64_t gathers_ = 0, broadcasts_ = 0;
  std::vector<Line> lines_;
  std::map<std::vector<int>, ncclComm_t> first_of_;
  std::map<std::string, int> known_;
  std::map<std::string, Line> pairs_;
};

/// How long a rank may stand at one operation before the job is ended: ORRERY_STALL_SECONDS.
base::Result<std::chrono::seconds> stall_limit() {
  constexpr std::chrono::seconds kUsual{300};
  const char* text = std::getenv("ORRERY_STALL_SECONDS");
  if (text == nullptr) return kUsual;
  const auto value = base::parse_integer(text);
  if (!value || *value < 1 || *value > 1 << 30)
    return base::fail(ErrorCode::kBadValue, "ORRERY_STALL_SECONDS='{}' is no number of seconds",
                      text);
  return std::chrono::seconds(*value);
}

/// Ranks of mpirun without a stated address ask MPI for one of rank 0's host.
base::Result<Rendezvous> rendezvous_of(const Launch& launch) {
#ifdef ORRERY_HAS_MPI
  if (!has_rendezvous(launch) && (launch.source == "mpirun" || launch.source == "pmi")) {
    TRY(const std::string text, mpi_rendezvous());
    const std::size_t colon = text.rfind(':');
    return Rendezvous{.host = text.substr(0, colon),
                      .port = static_cast<std::uint16_t>(std::stoi(text.substr(colon + 1))),
                      .agent_serves = false,
                      .attempt = "orrery"};
  }
#endif
  return find_rendezvous(launch);
}

}  // namespace

base::Result<std::unique_ptr<Communicator>> make_nccl_communicator(const Launch& launch,
                                                                   c10::Device device) {
  TRY(const std::chrono::seconds stall, stall_limit());
  TRY(const Rendezvous rendezvous, rendezvous_of(launch));
  TRY(std::unique_ptr<CudaStreams> streams, CudaStreams::create(device));
  TRY(Store store, Store::connect(launch, rendezvous));
  TRY(Store beside, store.another());
  auto watchdog =
      std::make_unique<Watchdog>(launch.rank, launch.world_size, std::move(beside), stall);
  return std::make_unique<NcclCommunicator>(launch, std::move(store), std::move(streams),
                                            std::move(watchdog));
}

}  // namespace orrery::executor
