#include "sim/network/transfer_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "base/fingerprint.h"
#include "sim/kernel/max_min.h"
#include "sim/kernel/remaining_work.h"
#include "sim/network/flow_system.h"
#include "tests/property/sim/random_traffic.h"
#include "tests/unit/sim/tree_ring.h"

namespace orrery::sim {
namespace {

/// The naive twin: at every instant all lanes are looked at, and shares are solved from nothing.
class Naive {
 public:
  explicit Naive(const FlowSystem& system) : system_(system), lanes_(system.lanes.size()) {}

  /// Ends of the last instances; checks capacity and bytes on the way.
  std::vector<std::int64_t> run() {
    std::vector<std::int64_t> capacities = system_.capacities;
    std::size_t change = 0;
    std::vector<std::int64_t> ends(lanes_.size(), 0);
    for (std::int64_t now = 0;;) {
      for (; change < system_.changes.size() && system_.changes[change].at_ps <= now; ++change) {
        capacities[system_.changes[change].constraint] = system_.changes[change].capacity;
      }
      while (one_step(now, ends)) {
      }
      if (std::all_of(lanes_.begin(), lanes_.end(), [&](const Lane& l) { return done(l); }))
        return ends;
      share(capacities);
      std::int64_t next = change < system_.changes.size()
                              ? system_.changes[change].at_ps
                              : std::numeric_limits<std::int64_t>::max();
      for (const Lane& l : lanes_) next = std::min(next, due(l, now));
      EXPECT_GT(next, now);
      for (Lane& l : lanes_) {
        if (l.wire) l.left -= kernel::Int128(l.rate) * (next - now);
      }
      now = next;
    }
  }

 private:
  struct Lane {
    std::uint32_t ended = 0;
    bool waits = false, wire = false;  // in latency; sending
    std::int64_t until_ps = 0;
    kernel::Int128 left = 0;
    std::int64_t rate = 0;
  };
  [[nodiscard]] std::uint32_t index(const Lane& l) const {
    return static_cast<std::uint32_t>(&l - lanes_.data());
  }
  [[nodiscard]] const FlowSystem::Lane& about(const Lane& l) const {
    return system_.lanes[index(l)];
  }
  [[nodiscard]] bool done(const Lane& l) const {
    return about(l).endless || l.ended == about(l).repeats;
  }
  [[nodiscard]] std::int64_t due(const Lane& l, std::int64_t now) const {
    if (l.waits) return l.until_ps;
    if (!l.wire || l.rate == 0 || about(l).endless) return std::numeric_limits<std::int64_t>::max();
    return now + static_cast<std::int64_t>((l.left + l.rate - 1) / l.rate);
  }
  bool one_step(std::int64_t now, std::vector<std::int64_t>& ends) {
    bool any = false;
    for (Lane& l : lanes_) {
      const FlowSystem::Lane& what = about(l);
      if (l.waits && l.until_ps == now) {
        l.waits = false;
        l.wire = true;
        any = true;
      } else if (l.wire && l.left <= 0 && !what.endless) {
        l.wire = false;
        ends[index(l)] = now;
        ++l.ended;
        any = true;
      } else if (!l.waits && !l.wire && l.ended < what.repeats && ready(l)) {
        l.left = kernel::Int128(what.bytes) * 1'000'000'000'000;
        l.until_ps = now + what.latency_ps;
        l.waits = what.latency_ps > 0;
        l.wire = !l.waits;
        any = true;
      }
    }
    return any;
  }
  [[nodiscard]] bool ready(const Lane& l) const {
    for (const auto& w : system_.waits[index(l)]) {
      const std::int64_t instance = static_cast<std::int64_t>(l.ended) - w.distance;
      if (instance < 0) continue;
      if (lanes_[w.before].ended <
          std::min<std::int64_t>(instance + 1, system_.lanes[w.before].repeats))
        return false;
    }
    return true;
  }
  void share(const std::vector<std::int64_t>& capacities) {
    kernel::MaxMin shares;
    for (const auto c : capacities) shares.add_constraint(c);
    for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
      std::vector<kernel::Consumption> uses;
      for (const auto& load : system_.loads[i])
        uses.push_back({kernel::ConstraintId(load.constraint), load.flows});
      shares.add_variable(system_.lanes[i].rate, uses);
      if (lanes_[i].wire) shares.activate(kernel::VariableId(i));
    }
    shares.solve();
    for (std::uint32_t i = 0; i < lanes_.size(); ++i)
      lanes_[i].rate = shares.rate(kernel::VariableId(i));
  }

  const FlowSystem& system_;
  std::vector<Lane> lanes_;
};

TEST(TransferRunProperty, EqualsANaiveRunToThePicosecond) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    auto [graph, options] = testing::RandomTraffic(seed).draw(true);
    options.fold = false;
    const auto ours = run_transfers(graph, options);
    ASSERT_TRUE(ours.has_value());
    const FlowSystem system = make_system(graph, options);
    auto naive = Naive(system).run();
    naive.resize(graph.transfers().size());
    ASSERT_EQ(ours->ends_ps, naive) << "seed " << seed;
  }
}

// What goes in comes out: a link cannot have carried more than its capacity allowed, nor other than
// what its transfers sent.
TEST(TransferRunProperty, LinksCarryWhatWasSentAndNoMoreThanTheyCan) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto [graph, options] = testing::RandomTraffic(seed).draw(true);
    const auto outcome = run_transfers(graph, options);
    ASSERT_TRUE(outcome.has_value());
    std::vector<std::int64_t> sent(graph.capacities().size(), 0);
    std::vector<bool> background(sent.size(), false);
    for (const auto& flow : options.background) background[flow.loads[0].link.raw()] = true;
    for (std::uint32_t i = 0; i < graph.transfers().size(); ++i) {
      const auto& spec = graph.transfers()[i].spec;
      for (const auto& load : graph.loads(TransferId(i)))
        sent[load.link.raw()] += load.flows * spec.bytes * spec.repeats;
    }
    for (std::size_t l = 0; l < sent.size(); ++l) {
      ASSERT_LE(outcome->links[l].utilisation, 1.0);
      ASSERT_GE(outcome->links[l].bytes, sent[l]);
      ASSERT_TRUE(background[l] || outcome->links[l].bytes == sent[l]);
    }
    ASSERT_EQ(outcome->end_ps, *std::max_element(outcome->ends_ps.begin(), outcome->ends_ps.end()));
  }
}

// The same on every machine, by every compiler: update it when the rules or the draws change, and
// only then.
TEST(TransferRunProperty, TimesHaveThisFingerprintEverywhere) {
  base::Fingerprint all;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    auto [graph, options] = testing::RandomTraffic(seed).draw(seed % 2 == 1);
    options.fold = seed % 3 > 0;
    const auto outcome = run_transfers(graph, options);
    ASSERT_TRUE(outcome.has_value());
    all.add(outcome->fingerprint);
  }
  EXPECT_EQ(all.hex(), "d0eaad0a30ee7ec51052759712658ce8");
}

// Names mean nothing: links renumbered, transfers in another order, waits stated in another order.
TEST(TransferRunProperty, RenumberingChangesNothing) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto [graph, options] = testing::RandomTraffic(seed).draw(seed % 2 == 0);
    const auto links =
        testing::shuffled(static_cast<std::uint32_t>(graph.capacities().size()), seed);
    const auto n = static_cast<std::uint32_t>(graph.transfers().size());
    for (const bool transfers_too : {false, true}) {
      // [new]: old
      const auto order = transfers_too ? testing::shuffled(n, seed + 1) : testing::in_order(n);
      std::vector<std::uint32_t> place(n);
      for (std::uint32_t i = 0; i < n; ++i) place[order[i]] = i;
      std::vector<std::int64_t> capacities(graph.capacities().size());
      for (std::size_t l = 0; l < capacities.size(); ++l)
        capacities[links[l]] = graph.capacities()[l];
      const auto renamed = [&](std::span<const costmodel::LinkLoad> loads) {
        std::vector<costmodel::LinkLoad> out;
        for (const auto& load : loads)
          out.insert(out.begin(), {topologies::LinkId(links[load.link.raw()]), load.flows});
        return out;
      };
      TransferGraph other(capacities);
      for (const auto old : order)
        other.add(graph.transfers()[old].spec, renamed(graph.loads(TransferId(old))));
      for (std::size_t d = graph.dependencies().size(); d-- > 0;) {
        const auto& wait = graph.dependencies()[d];
        other.depend(TransferId(place[wait.after.raw()]), TransferId(place[wait.before.raw()]),
                     wait.distance);
      }
      TransferRunOptions same = options;
      for (auto& change : same.changes) change.link = topologies::LinkId(links[change.link.raw()]);
      for (auto& flow : same.background) flow.loads = renamed(flow.loads);
      const auto a = run_transfers(graph, options), b = run_transfers(other, same);
      ASSERT_TRUE(a.has_value() && b.has_value());
      for (std::uint32_t i = 0; i < n; ++i)
        ASSERT_EQ(b->ends_ps[i], a->ends_ps[order[i]]) << "seed " << seed;
      ASSERT_TRUE(transfers_too || a->fingerprint == b->fingerprint);
    }
  }
}

}  // namespace
}  // namespace orrery::sim
