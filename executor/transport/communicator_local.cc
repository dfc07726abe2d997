/// The transports that move nothing: self, stub and replay. Self is a stub of a world of one, where
/// repeating the own part is exact; a replay is a stub whose operations take their time.
#include <optional>
#include <utility>

#include "base/numbers.h"
#include "executor/transport/communicator.h"
#include "executor/transport/predicted_times.h"

namespace orrery::executor {

Slots slots_of(const at::Tensor& whole, int dim, int group) {
  Slots slots;
  for (int i = 0; i < dim; ++i) slots.outer *= whole.size(i);
  slots.inner = whole.numel() / slots.outer / group;
  ORRERY_CHECK(slots.outer * slots.inner * group == whole.numel(),
               "a tensor of {} elements in {} slots", whole.numel(), group);
  return slots;
}

namespace {

class EndedTransfer final : public Transfer {
 public:
  base::Result<bool> test() override { return true; }
  base::Result<void> wait() override { return {}; }
};

/// Under way until its time has come, as one of a real transport.
class TimedTransfer final : public Transfer {
 public:
  TimedTransfer(std::vector<TransferLeg> legs, PredictedTimes::Clock::time_point end)
      : legs_(std::move(legs)), end_(end) {}
  base::Result<bool> test() override { return PredictedTimes::Clock::now() >= end_; }
  base::Result<void> wait() override {
    wait_until(end_);
    return {};
  }

 private:
  std::vector<TransferLeg> legs_;
  PredictedTimes::Clock::time_point end_;
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(int rank, int world_size) {
    rank_ = rank;
    world_size_ = world_size;
  }
  /// Of a replay. `streams`: null on the CPU.
  LocalCommunicator(int rank, int world_size, PredictedTimes times,
                    std::unique_ptr<Streams> streams)
      : LocalCommunicator(rank, world_size) {
    times_ = std::move(times);
    streams_ = std::move(streams);
  }

  Streams* streams() override { return streams_.get(); }
  void at(const Place& place) override {
    if (times_ && !place.operation.empty()) times_->at(place.number);
  }

  base::Result<Channel> channel(std::span<const int> ranks, plan::Stream) override {
    Channel c{.id = 0, .index = -1, .size = as_int(ranks.size())};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] == rank_) c.index = as_int(i);
    }
    ORRERY_CHECK(c.index >= 0, "rank {} asks for a group it is not in", rank_);
    return c;
  }

  base::Result<void> all_reduce(const Channel&, at::Tensor&, plan::Reduce) override {
    return timed([] {});
  }
  base::Result<void> all_gather(const Channel& c, const at::Tensor& part, at::Tensor& whole,
                                int dim) override {
    // one copy for all: a loop over a thousand ranks would hold a device up
    const auto [outer, inner] = slots_of(whole, dim, c.size);
    at::Tensor slots = whole.view({outer, c.size, inner});
    return timed([&] { slots.copy_(part.view({outer, 1, inner}).expand_as(slots)); });
  }
  base::Result<void> reduce_scatter(const Channel& c, const at::Tensor& whole, at::Tensor& part,
                                    int dim) override {
    return timed([&] { part.copy_(slot(c, whole, dim, c.index)); });
  }
  base::Result<void> all_to_all(const Channel&, const at::Tensor& in, at::Tensor& out) override {
    return timed([&] { out.copy_(in); });
  }
  base::Result<void> shift(const Channel&, const at::Tensor& in, at::Tensor& out) override {
    return timed([&] { out.copy_(in); });
  }
  base::Result<void> broadcast(const Channel&, at::Tensor&, int) override {
    return timed([] {});
  }

  base::Result<std::unique_ptr<Transfer>> post(std::vector<TransferLeg> legs) override {
    if (times_) TRY_VOID(times_->begin());
    for (TransferLeg& leg : legs) {
      if (!leg.send) leg.tensor.uniform_(-1, 1);
    }
    if (times_) TRY_VOID(times_->end());
    if (!times_ || streams_) return std::make_unique<EndedTransfer>();
    return std::make_unique<TimedTransfer>(std::move(legs), times_->end_on_host());
  }

  base::Result<void> barrier() override { return {}; }
  base::Result<std::vector<std::string>> gather(const std::string& text) override {
    return std::vector<std::string>{text};
  }
  base::Result<std::string> broadcast(const std::string& text) override { return text; }
  void abort(int) override {}

 private:
  /// A collective whose data `make_up` makes.
  template <class MakeUp>
  base::Result<void> timed(MakeUp make_up) {
    if (times_) TRY_VOID(times_->begin());
    make_up();
    if (!times_) return {};
    TRY_VOID(times_->end());
    wait_until(times_->end_on_host());
    return {};
  }
  static at::Tensor slot(const Channel& c, const at::Tensor& whole, int dim, int i) {
    const std::int64_t length = whole.size(dim) / c.size;
    return whole.narrow(dim, i * length, length);
  }

  std::optional<PredictedTimes> times_;  // of a replay
  std::unique_ptr<Streams> streams_;     // of a replay on CUDA
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<LocalCommunicator>(0, 1);
}
std::unique_ptr<Communicator> make_stub_communicator(int rank, int world_size) {
  return std::make_unique<LocalCommunicator>(rank, world_size);
}
base::Result<std::unique_ptr<Communicator>> make_replay_communicator(int rank, int world_size,
                                                                     std::vector<std::int64_t> ps,
                                                                     c10::Device device) {
  std::unique_ptr<Streams> streams;
  if (!device.is_cpu()) {
    TRY(streams, make_cuda_streams(device));
  }
  return std::make_unique<LocalCommunicator>(
      rank, world_size, PredictedTimes(std::move(ps), device), std::move(streams));
}

}  // namespace orrery::executor
