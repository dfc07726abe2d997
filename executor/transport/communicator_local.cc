/// The two transports that move nothing: self and stub. Self is a stub of a world of one, where
/// repeating the own part is exact.
#include "base/numbers.h"
#include "executor/transport/communicator.h"

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

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(int rank, int world_size) {
    rank_ = rank;
    world_size_ = world_size;
  }

  base::Result<Channel> channel(std::span<const int> ranks, plan::Stream) override {
    Channel c{.id = 0, .index = -1, .size = as_int(ranks.size())};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] == rank_) c.index = as_int(i);
    }
    ORRERY_CHECK(c.index >= 0, "rank {} asks for a group it is not in", rank_);
    return c;
  }

  base::Result<void> all_reduce(const Channel&, at::Tensor&, plan::Reduce) override { return {}; }
  base::Result<void> all_gather(const Channel& c, const at::Tensor& part, at::Tensor& whole,
                                int dim) override {
    for (int i = 0; i < c.size; ++i) slot(c, whole, dim, i).copy_(part);
    return {};
  }
  base::Result<void> reduce_scatter(const Channel& c, const at::Tensor& whole, at::Tensor& part,
                                    int dim) override {
    part.copy_(slot(c, whole, dim, c.index));
    return {};
  }
  base::Result<void> all_to_all(const Channel&, const at::Tensor& in, at::Tensor& out) override {
    out.copy_(in);
    return {};
  }
  base::Result<void> shift(const Channel&, const at::Tensor& in, at::Tensor& out) override {
    out.copy_(in);
    return {};
  }
  base::Result<void> broadcast(const Channel&, at::Tensor&, int) override { return {}; }

  base::Result<std::unique_ptr<Transfer>> post(std::vector<TransferLeg> legs) override {
    for (TransferLeg& leg : legs) {
      if (!leg.send) leg.tensor.uniform_(-1, 1);
    }
    return std::make_unique<EndedTransfer>();
  }

  base::Result<void> barrier() override { return {}; }
  base::Result<std::vector<std::string>> gather(const std::string& text) override {
    return std::vector<std::string>{text};
  }
  base::Result<std::string> broadcast(const std::string& text) override { return text; }
  void abort(int) override {}

 private:
  static at::Tensor slot(const Channel& c, const at::Tensor& whole, int dim, int i) {
    const std::int64_t length = whole.size(dim) / c.size;
    return whole.narrow(dim, i * length, length);
  }
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<LocalCommunicator>(0, 1);
}
std::unique_ptr<Communicator> make_stub_communicator(int rank, int world_size) {
  return std::make_unique<LocalCommunicator>(rank, world_size);
}

}  // namespace orrery::executor
