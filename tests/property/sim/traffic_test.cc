// The flow network on whole fabrics, against a naive twin.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "base/fingerprint.h"
#include "sim/kernel/max_min.h"
#include "tests/property/sim/random_traffic.h"
#include "tests/unit/sim/tree_ring.h"

namespace orrery::sim {
namespace {

using testing::RandomTraffic;
using testing::Traffic;

/// The naive twin: at every instant all transfers are looked at, every link is a constraint, and
/// shares are solved from nothing.
class Naive {
 public:
  explicit Naive(const Traffic& traffic) : traffic_(traffic), flows_(traffic.items.size()) {
    std::map<std::uint32_t, std::size_t> last;  // [lane]
    for (std::size_t i = 0; i < flows_.size(); ++i) {
      flows_[i].before = last.try_emplace(traffic.items[i].lane, i).first->second;
      last[traffic.items[i].lane] = i;
    }
  }

  /// [item] when it ends.
  std::vector<std::int64_t> run() {
    for (now_ = 0;;) {
      while (era_ + 1 < traffic_.eras.size() && traffic_.eras[era_ + 1].from_ps <= now_) ++era_;
      while (one_step()) {
      }
      const bool done = std::ranges::all_of(flows_, [](const Flow& f) { return f.leg == kEnded; });
      if (done) break;
      share();
      const std::int64_t next = next_ps();
      EXPECT_GT(next, now_);
      for (Flow& f : flows_) {
        if (f.leg == kWire) f.left -= kernel::Int128(f.rate) * (next - now_);
      }
      now_ = next;
    }
    std::vector<std::int64_t> ends;
    for (const Flow& f : flows_) ends.push_back(f.until_ps);
    return ends;
  }

 private:
  enum Leg { kDue, kLatency, kWire, kEnded };
  struct Flow {
    Leg leg = kDue;
    std::int64_t until_ps = 0;  // of its latency; its end
    kernel::Int128 left = 0;
    std::int64_t rate = 0;
    std::size_t before = 0;  // on its lane; itself: none
  };

  bool one_step() {
    bool any = false;
    for (std::size_t i = 0; i < flows_.size(); ++i) {
      Flow& f = flows_[i];
      const Traffic::Item& item = traffic_.items[i];
      if (f.leg == kDue && item.from_ps <= now_ &&
          (f.before == i || flows_[f.before].leg == kEnded)) {
        f.leg = kLatency;
        f.until_ps = now_ + item.transfer.latency_ps;
      } else if (f.leg == kLatency && f.until_ps == now_) {
        f.leg = kWire;
        f.left = kernel::Int128(item.transfer.wire_bytes) * 1'000'000'000'000;
      } else if (f.leg == kWire && f.left <= 0) {
        f.leg = kEnded;
        f.until_ps = now_;
      } else {
        continue;
      }
      any = true;
    }
    return any;
  }
  [[nodiscard]] std::int64_t next_ps() const {
    std::int64_t next = std::numeric_limits<std::int64_t>::max();
    if (era_ + 1 < traffic_.eras.size()) next = traffic_.eras[era_ + 1].from_ps;
    for (std::size_t i = 0; i < flows_.size(); ++i) {
      const Flow& f = flows_[i];
      if (f.leg == kDue && traffic_.items[i].from_ps > now_)
        next = std::min(next, traffic_.items[i].from_ps);
      if (f.leg == kLatency) next = std::min(next, f.until_ps);
      if (f.leg == kWire)
        next = std::min(next, now_ + static_cast<std::int64_t>((f.left + f.rate - 1) / f.rate));
    }
    return next;
  }
  void share() {
    kernel::MaxMin shares;
    for (const std::int64_t c : traffic_.eras[era_].capacities) shares.add_constraint(c);
    const auto add = [&](std::int64_t cap, const std::vector<costmodel::LinkLoad>& links) {
      std::vector<kernel::Consumption> uses;
      for (const auto& load : links)
        uses.push_back({kernel::ConstraintId(load.link.raw()), load.flows});
      return shares.add_variable(cap, uses);
    };
    std::vector<kernel::VariableId> variables;
    for (std::size_t i = 0; i < flows_.size(); ++i) {
      const costmodel::Transfer t = traffic_.priced(i, era_);
      variables.push_back(add(t.bytes_per_second, t.links));
      if (flows_[i].leg == kWire) shares.activate(variables.back());
    }
    for (const BackgroundFlow& flow : traffic_.background)
      shares.activate(add(flow.bytes_per_second, flow.loads));
    shares.solve();
    for (std::size_t i = 0; i < flows_.size(); ++i) flows_[i].rate = shares.rate(variables[i]);
  }

  const Traffic& traffic_;
  std::vector<Flow> flows_;
  std::size_t era_ = 0;
  std::int64_t now_ = 0;
};

TEST(TrafficProperty, EqualsANaiveRunToThePicosecond) {
  std::size_t transfers = 0, changed = 0, beside_others = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Traffic traffic = RandomTraffic(seed).draw(true);
    ASSERT_EQ(run_traffic(traffic).ends_ps, Naive(traffic).run()) << "seed " << seed;
    transfers += traffic.items.size();
    changed += traffic.eras.size() > 1 ? 1 : 0;
    beside_others += traffic.background.size();
  }
  EXPECT_GT(transfers, 3000U);
  EXPECT_GT(changed, 15U);
  EXPECT_GT(beside_others, 10U);
}

// What goes in comes out: a transfer sends its bytes, a link carries no more than its capacity
// allowed.
TEST(TrafficProperty, LinksCarryWhatWasSentAndNoMoreThanTheyCan) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Traffic traffic = RandomTraffic(seed).draw(true);
    const auto outcome = run_traffic(traffic);
    std::vector<std::int64_t> carried(outcome.room.size(), 0);
    for (std::size_t i = 0; i < traffic.items.size(); ++i) {
      // an era's part of it is rounded down
      const std::int64_t bytes = traffic.items[i].transfer.wire_bytes;
      ASSERT_LE(outcome.sent[i], bytes);
      ASSERT_GT(outcome.sent[i], bytes - static_cast<std::int64_t>(traffic.eras.size()));
      for (const auto& load : traffic.items[i].transfer.links)
        carried[load.link.raw()] += load.flows * outcome.sent[i];
    }
    for (std::size_t b = 0; b < traffic.background.size(); ++b) {
      for (const auto& load : traffic.background[b].loads)
        carried[load.link.raw()] += load.flows * outcome.sent[traffic.items.size() + b];
    }
    for (std::size_t l = 0; l < carried.size(); ++l)
      ASSERT_LE(static_cast<double>(carried[l]), outcome.room[l]) << "seed " << seed;
    ASSERT_EQ(outcome.end_ps, std::ranges::max(outcome.ends_ps));
  }
}

// The same on every machine, by every compiler: update it when the rules or the draws change, and
// only then.
TEST(TrafficProperty, TimesHaveThisFingerprintEverywhere) {
  base::Fingerprint all;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    for (const std::int64_t end_ps : run_traffic(RandomTraffic(seed).draw(seed % 2 == 1)).ends_ps)
      all.add(end_ps);
  }
  EXPECT_EQ(all.hex(), "0f28b00d4c23c2dea434e12e94b09ce5");
}

// Names mean nothing: links renumbered, lanes in another order.
TEST(TrafficProperty, RenumberingChangesNothing) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Traffic traffic = RandomTraffic(seed).draw(seed % 2 == 0);
    const std::size_t links = traffic.eras.front().capacities.size();
    const auto new_link = testing::shuffled(static_cast<std::uint32_t>(links), seed);
    const auto renamed = [&](std::vector<costmodel::LinkLoad> loads) {
      std::ranges::reverse(loads);
      for (auto& load : loads) load.link = topologies::LinkId(new_link[load.link.raw()]);
      return loads;
    };
    Traffic other{.eras = traffic.eras};
    for (std::size_t e = 0; e < traffic.eras.size(); ++e) {
      for (std::size_t l = 0; l < links; ++l)
        other.eras[e].capacities[new_link[l]] = traffic.eras[e].capacities[l];
    }
    for (BackgroundFlow flow : traffic.background) {
      flow.loads = renamed(std::move(flow.loads));
      other.background.push_back(std::move(flow));
    }
    std::uint32_t lanes = 0;
    for (const Traffic::Item& item : traffic.items) lanes = std::max(lanes, item.lane + 1);
    const auto new_lane = testing::shuffled(lanes, seed + 1);
    std::vector<std::size_t> order(traffic.items.size());  // [new]: old
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, {},
                             [&](std::size_t i) { return new_lane[traffic.items[i].lane]; });
    for (const std::size_t old : order) {
      Traffic::Item item = traffic.items[old];
      item.lane = new_lane[item.lane];
      item.transfer.links = renamed(std::move(item.transfer.links));
      other.items.push_back(std::move(item));
    }
    const auto a = run_traffic(traffic), b = run_traffic(other);
    for (std::size_t i = 0; i < order.size(); ++i)
      ASSERT_EQ(b.ends_ps[i], a.ends_ps[order[i]]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace orrery::sim
