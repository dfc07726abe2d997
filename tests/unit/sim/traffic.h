#pragma once
/// Transfers over links stated as numbers, run on the FlowNetwork.
///
/// Each transfer has a lane and a time: it starts at that time, or when the one before it on its
/// lane has ended.
///
///     Traffic t{.eras = {{.capacities = {kGB}}}};
///     t.add({.wire_bytes = 100, .links = over({0})});
///     run_traffic(t).ends_ps;                                            // {100'000}
#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "sim/kernel/event_queue.h"
#include "sim/network/flow_network.h"
#include "tests/unit/sim/step_maker.h"

namespace orrery::sim::testing {

/// A machine whose link l has capacities[l]. Its routes mean nothing.
inline topologies::Topology machine_of(const std::vector<std::int64_t>& capacities) {
  topologies::TopologyBuilder b("links");
  const auto model = test_device(b);
  const auto from = b.add_device("from", 0, model), to = b.add_device("to", 0, model);
  for (const std::int64_t c : capacities) b.add_link(from, to, c, base::Seconds(0), "link");
  b.add_duplex(from, to, 1, base::Seconds(0), "way back");
  auto made = std::move(b).build();
  ORRERY_CHECK(made.has_value(), "{}", base::to_string(made.error()));
  return *std::move(made);
}

/// One flow over each of these links.
inline std::vector<costmodel::LinkLoad> over(const std::vector<std::uint32_t>& links) {
  std::vector<costmodel::LinkLoad> loads;
  for (const std::uint32_t l : links) loads.push_back({topologies::LinkId(l), 1});
  return loads;
}

struct Traffic {
  struct Item {
    costmodel::Transfer transfer;  // its rate alone is left to priced()
    std::uint32_t lane = 0;
    std::int64_t from_ps = 0;
  };
  struct Era {
    std::int64_t from_ps = 0;
    std::vector<std::int64_t> capacities;  // bytes per second
  };
  std::vector<Era> eras;  // the first from 0
  std::vector<Item> items = {};
  std::vector<BackgroundFlow> background = {};

  /// On a lane of its own.
  void add(costmodel::Transfer transfer, std::int64_t from_ps = 0) {
    items.push_back({std::move(transfer), static_cast<std::uint32_t>(items.size()), from_ps});
  }
  /// The transfer with its rate alone in an era: the least of its cap and of its links' capacity by
  /// flows.
  [[nodiscard]] costmodel::Transfer priced(std::size_t item, std::size_t era) const {
    costmodel::Transfer t = items[item].transfer;
    t.bytes_per_second = t.rate_cap > 0 ? t.rate_cap : std::numeric_limits<std::int64_t>::max();
    for (const costmodel::LinkLoad& l : t.links)
      t.bytes_per_second =
          std::min(t.bytes_per_second, eras[era].capacities[l.link.raw()] / l.flows);
    return t;
  }
};

struct TrafficOutcome {
  std::int64_t end_ps = 0;            // of the last transfer
  std::vector<std::int64_t> ends_ps;  // [item]
  std::vector<std::int64_t> sent;     // [item], then background: bytes of a flow
  std::vector<double> room;           // [link] bytes that it could have carried until the end
};

class TrafficRun {
 public:
  explicit TrafficRun(const Traffic& traffic)
      : traffic_(traffic),
        machines_(machines(traffic)),
        network_(machines_.front(), 1'000'000, queue_, kNetwork) {
    for (std::size_t i = 0; i < traffic.items.size(); ++i) {
      const Traffic::Item& item = traffic.items[i];
      network_.add(traffic.priced(i, 0), item.lane);
      if (item.lane >= lanes_.size()) lanes_.resize(item.lane + 1);
      lanes_[item.lane].items.push_back(static_cast<std::uint32_t>(i));
      queue_.push(base::SimTime::from_ps(item.from_ps), kernel::Phase::kStart, kDue, item.lane);
    }
    for (const BackgroundFlow& flow : traffic.background) network_.add_background(flow);
    for (std::size_t e = 1; e < traffic.eras.size(); ++e) {
      std::vector<costmodel::Transfer> transfers;
      for (std::size_t i = 0; i < traffic.items.size(); ++i)
        transfers.push_back(traffic.priced(i, e));
      network_.change(traffic.eras[e].from_ps, machines_[e], std::move(transfers),
                      traffic.background);
    }
    network_.freeze();
  }

  TrafficOutcome run() {
    TrafficOutcome outcome;
    outcome.ends_ps.assign(traffic_.items.size(), 0);
    std::size_t left = traffic_.items.size();
    while (left > 0) {
      ORRERY_CHECK(!queue_.empty(), "{} transfers never end", left);
      do {
        const kernel::Event event = queue_.pop();
        if (event.kind == kDue || !network_.on_event(event)) continue;
        Lane& lane = lanes_[lane_of_flow_[event.target]];
        outcome.ends_ps[lane.items[lane.next++]] = queue_.now().ps();
        lane.busy = false;
        --left;
      } while (queue_.more_now());
      start_due();
      network_.settle(queue_.now().ps());
    }
    outcome.end_ps = queue_.now().ps();
    outcome.sent.assign(network_.transfers(), 0);
    for (const auto& of_era : network_.sent_bytes(outcome.end_ps)) {
      for (std::size_t i = 0; i < of_era.size(); ++i) outcome.sent[i] += of_era[i];
    }
    for (std::uint32_t l = 0; l < traffic_.eras.front().capacities.size(); ++l)
      outcome.room.push_back(network_.room_bytes(topologies::LinkId(l), outcome.end_ps));
    return outcome;
  }

 private:
  enum : std::uint32_t { kNetwork, kDue };
  struct Lane {
    std::vector<std::uint32_t> items;
    std::size_t next = 0;
    bool busy = false;
  };
  static std::vector<topologies::Topology> machines(const Traffic& traffic) {
    std::vector<topologies::Topology> all;
    for (const Traffic::Era& era : traffic.eras) all.push_back(machine_of(era.capacities));
    return all;
  }
  void start_due() {
    const std::int64_t now = queue_.now().ps();
    for (std::uint32_t l = 0; l < lanes_.size(); ++l) {
      Lane& lane = lanes_[l];
      if (lane.busy || lane.next == lane.items.size()) continue;
      const std::uint32_t item = lane.items[lane.next];
      if (traffic_.items[item].from_ps > now) continue;
      const FlowNetwork::FlowIndex flow = network_.start(now, item);
      if (flow >= lane_of_flow_.size()) lane_of_flow_.resize(flow + 1);
      lane_of_flow_[flow] = l;
      lane.busy = true;
    }
  }

  const Traffic& traffic_;
  std::vector<topologies::Topology> machines_;
  kernel::EventQueue queue_;
  FlowNetwork network_;
  std::vector<Lane> lanes_;
  std::vector<std::uint32_t> lane_of_flow_;
};

inline TrafficOutcome run_traffic(const Traffic& traffic) { return TrafficRun(traffic).run(); }

}  // namespace orrery::sim::testing
