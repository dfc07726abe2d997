#include "sim/network/flow_network.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/unit/sim/step_maker.h"

namespace orrery::sim {
namespace {

constexpr std::int64_t kMillion = 1'000'000;

/// Transfers over the links of a star; rates alone as the cost model would state them.
std::vector<costmodel::Transfer> random_transfers(const topologies::Topology& star) {
  std::vector<costmodel::Transfer> transfers;
  const int n = *rc::gen::inRange(1, 7);
  for (int i = 0; i < n; ++i) {
    costmodel::Transfer t;
    t.latency_ps = *rc::gen::inRange<std::int64_t>(0, 5000);
    t.wire_bytes = *rc::gen::inRange<std::int64_t>(0, 20'000);
    t.bytes_per_second = *rc::gen::inRange<std::int64_t>(1'000'000, 2'000'000'000);
    for (const auto link :
         {*rc::gen::inRange<std::uint32_t>(0, 4), *rc::gen::inRange<std::uint32_t>(4, 8)}) {
      const std::int64_t flows = *rc::gen::inRange<std::int64_t>(1, 4);
      t.links.push_back({topologies::LinkId(link), flows});
      t.bytes_per_second = std::min(t.bytes_per_second,
                                    star.link(topologies::LinkId(link)).bytes_per_second / flows);
    }
    transfers.push_back(t);
  }
  return transfers;
}

RC_GTEST_PROP(FlowNetworkProperty, ATransferAloneTakesItsDurationToThePicosecond, ()) {
  const auto star = testing::star(4, 1'234'567'891, 0);
  const auto transfers = random_transfers(star);
  const std::int64_t slowdown = *rc::gen::inRange<std::int64_t>(kMillion, 2 * kMillion);
  kernel::EventQueue queue;
  FlowNetwork network(star, slowdown, queue, 0);
  for (std::uint32_t i = 0; i < transfers.size(); ++i) network.add(transfers[i], i);
  network.freeze();
  std::int64_t now = 0;
  for (std::uint32_t i = 0; i < transfers.size(); ++i) {
    network.start(now, i);
    network.settle(now);
    const std::int64_t started = now;
    bool ended = false;
    while (!ended) {
      const kernel::Event event = queue.pop();
      now = event.at.ps();
      ended = network.on_event(event);
      network.settle(now);
    }
    RC_ASSERT(now - started == transfers[i].duration_ps());
  }
}

/// The star with every link at a rate of its own.
topologies::Topology other_rates(const topologies::Topology& star) {
  std::vector<topologies::LinkRate> rates;
  for (std::uint32_t l = 0; l < star.links().size(); ++l)
    rates.push_back(
        {topologies::LinkId(l), *rc::gen::inRange<std::int64_t>(1'000'000, 2'000'000'000)});
  return star.with_links(rates);
}

std::vector<costmodel::Transfer> priced_on(std::vector<costmodel::Transfer> transfers,
                                           const topologies::Topology& star) {
  for (costmodel::Transfer& t : transfers)
    for (const costmodel::LinkLoad& l : t.links)
      t.bytes_per_second =
          std::min(t.bytes_per_second, star.link(l.link).bytes_per_second / l.flows);
  return transfers;
}

/// What a test does to a network at given times.
struct Action {
  std::int64_t at_ps = 0;
  std::uint32_t transfer = 0;
  bool flip = false;  // slowed or no longer so, if it runs; otherwise start it, if it does not
};
/// What comes of it: ends of transfers, (transfer, ps); after each instant with an action, bytes
/// sent and rates of those that run.
struct Outcome {
  std::vector<std::pair<std::size_t, std::int64_t>> ends;
  std::vector<std::vector<std::int64_t>> sent, rates;
};

enum class Foresight : std::uint8_t { kNone, kUntilSlowed, kPastSlowdowns };

class Run {
 public:
  Run(const topologies::Topology& star, const std::vector<costmodel::Transfer>& transfers,
      std::int64_t slowdown, Foresight foresight)
      : network_(star, slowdown, queue_, kNetwork),
        flow_(transfers.size(), kNone),
        slowed_(transfers.size(), false) {
    for (std::uint32_t i = 0; i < transfers.size(); ++i) network_.add(transfers[i], i);
    network_.freeze();
    if (foresight == Foresight::kNone) network_.step_by_step();
    if (foresight == Foresight::kPastSlowdowns) network_.foresee_slowed();
  }
  Outcome outcome_of(const std::vector<Action>& actions) {
    for (std::uint32_t d = 0; d < actions.size(); ++d)
      queue_.push(base::SimTime::from_ps(actions[d].at_ps), kernel::Phase::kStart, kAction, d);
    while (!queue_.empty()) {
      bool done = false;
      do {
        const kernel::Event event = queue_.pop();
        if (event.kind == kAction) {
          done = true;
          act(actions[event.target]);
        } else if (network_.on_event(event))
          end(event.target);
      } while (queue_.more_now());
      network_.settle(now());
      if (done) look();
    }
    look();
    return outcome_;
  }

 private:
  static constexpr std::uint32_t kNetwork = 0, kAction = 1;
  static constexpr FlowNetwork::FlowIndex kNone = ~FlowNetwork::FlowIndex{0};
  [[nodiscard]] std::int64_t now() const { return queue_.now().ps(); }
  void act(const Action& action) {
    FlowNetwork::FlowIndex& flow = flow_[action.transfer];
    if (action.flip && flow != kNone)
      network_.set_slowed(flow, slowed_[action.transfer] = !slowed_[action.transfer]);
    if (action.flip || flow != kNone) return;
    flow = network_.start(now(), action.transfer);
    slowed_[action.transfer] = false;
  }
  void end(FlowNetwork::FlowIndex flow) {
    const auto at = std::find(flow_.begin(), flow_.end(), flow);
    RC_ASSERT(at != flow_.end());
    *at = kNone;
    outcome_.ends.emplace_back(at - flow_.begin(), now());
  }
  void look() {
    outcome_.sent.push_back(network_.sent_bytes(now()).front());
    outcome_.rates.emplace_back();
    for (const FlowNetwork::FlowIndex flow : flow_)
      outcome_.rates.back().push_back(flow == kNone ? -1 : network_.rate(flow));
  }

  kernel::EventQueue queue_;
  FlowNetwork network_;
  std::vector<FlowNetwork::FlowIndex> flow_;
  std::vector<bool> slowed_;
  Outcome outcome_;
};

// Foreseen or step by step: the same ends, bytes and rates, whatever comes in between.
RC_GTEST_PROP(FlowNetworkProperty, ForesightChangesNothing, ()) {
  const auto star = testing::star(4, 1'234'567'891, 0);
  const auto transfers = random_transfers(star);
  const std::int64_t slowdown = *rc::gen::inRange<std::int64_t>(kMillion, 2 * kMillion),
                     span = *rc::gen::element<std::int64_t>(10'000, 10'000'000, 100'000'000);
  std::vector<Action> actions(*rc::gen::inRange<std::size_t>(1, 40));
  for (Action& d : actions) {
    d = {*rc::gen::inRange<std::int64_t>(0, span),
         static_cast<std::uint32_t>(*rc::gen::inRange<std::size_t>(0, transfers.size())),
         *rc::gen::inRange(0, 3) == 0};
  }
  const auto foresight = *rc::gen::element(Foresight::kUntilSlowed, Foresight::kPastSlowdowns);
  Outcome together = Run(star, transfers, slowdown, foresight).outcome_of(actions),
          apart = Run(star, transfers, slowdown, Foresight::kNone).outcome_of(actions);
  std::sort(together.ends.begin(), together.ends.end());  // of one instant, in any order
  std::sort(apart.ends.begin(), apart.ends.end());
  RC_ASSERT(together.ends == apart.ends);
  RC_ASSERT(together.sent == apart.sent);
  RC_ASSERT(together.rates == apart.rates);
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const auto runs = std::count_if(together.ends.begin(), together.ends.end(),
                                    [&](const auto& end) { return end.first == i; });
    RC_ASSERT(together.sent.back()[i] == runs * transfers[i].wire_bytes);
  }
}

/// Drives a network one event at a time and keeps its own count of what every flow has moved.
class Ledger {
 public:
  explicit Ledger(const topologies::Topology& star)
      : transfers_(random_transfers(star)),
        slowdown_(*rc::gen::inRange<std::int64_t>(kMillion, 2 * kMillion)),
        network_(star, slowdown_, queue_, 0),
        machines_{star},
        running_(transfers_.size()) {
    for (std::uint32_t i = 0; i < transfers_.size(); ++i) network_.add(transfers_[i], i);
    for (int change = *rc::gen::inRange(0, 3); change > 0; --change) {
      machines_.push_back(other_rates(star));
      from_ps_.push_back(from_ps_.back() + *rc::gen::inRange<std::int64_t>(1, 30'000'000));
    }
    for (std::size_t e = 1; e < machines_.size(); ++e)
      network_.change(from_ps_[e], machines_[e], priced_on(transfers_, machines_[e]), {});
    network_.freeze();
    // a rate must hold from one event to the next; with foresight all is the same (above)
    network_.step_by_step();
  }

  void run() {
    while (finished_ < transfers_.size()) {
      if (started_ < transfers_.size() && (queue_.empty() || *rc::gen::inRange(0, 2) == 0)) {
        running_[started_].flow = network_.start(now_, static_cast<std::uint32_t>(started_));
        running_[started_].alive = true;
        ++started_;
      } else {
        const kernel::Event event = queue_.pop();
        pass(event.at.ps());
        if (network_.on_event(event)) end(event.target);
        slow_some();
      }
      network_.settle(now_);
    }
  }

  void check_sent() const {
    const auto sent = network_.sent_bytes(now_);
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      std::int64_t bytes = 0;
      for (const auto& of_era : sent) bytes += of_era[i];
      RC_ASSERT(bytes <= transfers_[i].wire_bytes);
      RC_ASSERT(bytes > transfers_[i].wire_bytes - static_cast<std::int64_t>(machines_.size()));
    }
  }

 private:
  struct Running {
    FlowNetwork::FlowIndex flow = 0;
    bool alive = false, slowed = false;
    kernel::Int128 moved = 0, last = 0;
  };

  /// Everything moves until then; no link is over capacity.
  void pass(std::int64_t until) {
    std::vector<std::int64_t> used(machines_.front().links().size(), 0);
    for (std::size_t i = 0; i < running_.size(); ++i) {
      Running& r = running_[i];
      if (!r.alive) continue;
      const kernel::Int128 speed =
          kernel::Int128(network_.rate(r.flow)) * (r.slowed ? kMillion : slowdown_);
      r.moved += speed * (until - now_);
      // a speed that changes in the flow's last instant moves nothing
      if (until > now_) r.last = speed;
      for (const auto& l : transfers_[i].links)
        used[l.link.raw()] += l.flows * network_.rate(r.flow);
    }
    const auto next = std::upper_bound(from_ps_.begin(), from_ps_.end(), now_);
    const auto era = static_cast<std::size_t>(next - from_ps_.begin()) - 1;
    for (std::size_t l = 0; l < used.size(); ++l)
      RC_ASSERT(until == now_ || used[l] <= machines_[era].links()[l].bytes_per_second);
    now_ = until;
  }

  void end(FlowNetwork::FlowIndex flow) {
    for (std::size_t i = 0; i < running_.size(); ++i) {
      Running& r = running_[i];
      if (!r.alive || r.flow != flow) continue;
      r.alive = false;
      ++finished_;
      const kernel::Int128 work =
          kernel::Int128(transfers_[i].wire_bytes) * 1'000'000'000'000 * slowdown_;
      RC_ASSERT(bool(r.moved >= work));
      RC_ASSERT(bool(r.moved - work < std::max<kernel::Int128>(r.last, 1)));
    }
  }

  void slow_some() {
    for (Running& r : running_) {
      if (!r.alive || flips_ == 0 || *rc::gen::inRange(0, 4) > 0) continue;
      --flips_;
      r.slowed = !r.slowed;
      network_.set_slowed(r.flow, r.slowed);
    }
  }

  std::vector<costmodel::Transfer> transfers_;
  std::int64_t slowdown_;
  kernel::EventQueue queue_;
  FlowNetwork network_;
  std::vector<topologies::Topology> machines_;
  std::vector<std::int64_t> from_ps_ = {0};
  std::vector<Running> running_;
  std::int64_t now_ = 0;
  std::size_t started_ = 0, finished_ = 0;
  int flips_ = 30;  // each may leave a stale event behind
};

// Whatever starts when and is slowed when, and links that change: each flow moves its bytes, no
// less and by at most one picosecond's worth more; no link is over capacity.
RC_GTEST_PROP(FlowNetworkProperty, BytesAreNeitherLostNorGained, ()) {
  Ledger ledger(testing::star(4, 1'234'567'891, 0));
  ledger.run();
  ledger.check_sent();
}

}  // namespace
}  // namespace orrery::sim
