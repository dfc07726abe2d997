/// Schedules executed on symbolic data: who has whose contribution of which piece.
#include "sim/network/collective_schedule.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "sim/network/collective_run.h"
#include "tests/unit/costmodel/machines.h"
#include "tests/unit/costmodel/tunings.h"

namespace orrery::sim {
namespace {

using costmodel::Algorithm;
using costmodel::Protocol;
using model::Collective;
using Contributions = std::set<int>;
using State = std::map<int, std::vector<Contributions>>;  // rank, piece

/// Some ranks of some hosts, in any order.
std::vector<int> some_ranks(int devices) {
  std::vector<int> ranks(static_cast<std::size_t>(devices));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (*rc::gen::arbitrary<bool>()) return ranks;
  const auto keep =
      *rc::gen::container<std::vector<bool>>(ranks.size(), rc::gen::arbitrary<bool>());
  std::vector<int> some;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (keep[i]) some.push_back(ranks[i]);
  return some.size() < 2 ? std::vector{0, devices - 1} : some;
}

/// Steps in their order, each reading what its sender has when it starts: as dependencies come
/// earlier, an order that the schedule allows. A reduction counts a contribution twice? Then it is
/// wrong.
State executed(const CollectiveSchedule& s, State state) {
  for (const auto& step : s.steps) {
    if (step.path == CollectiveSchedule::kNoPath) continue;
    const auto& path = s.paths[step.path];
    for (int p = step.first_piece; p < step.first_piece + step.pieces; ++p) {
      const Contributions sent = state[path.from][static_cast<std::size_t>(p)];
      Contributions& mine = state[path.to][static_cast<std::size_t>(p)];
      if (!step.reduces) {
        mine = sent;
        continue;
      }
      for (const int c : sent) RC_ASSERT(mine.insert(c).second);
    }
  }
  return state;
}

struct Case {
  topologies::Topology usable;
  costmodel::CollectiveTuning tuning;
  std::vector<int> ranks;
};
Case any_case() {
  const int devices = *rc::gen::inRange(1, 5), hosts = *rc::gen::inRange(1, 5);
  Case c{costmodel::machines::cluster(devices * hosts < 2 ? 2 : devices, hosts),
         costmodel::tunings::round_numbers(),
         {}};
  c.usable = costmodel::usable_rates(c.usable, c.tuning);
  c.ranks = some_ranks(static_cast<int>(c.usable.device_count()));
  return c;
}

RC_GTEST_PROP(CollectiveSchedule, EveryAllReduceLeavesEveryContributionEverywhere, ()) {
  const Case c = any_case();
  const costmodel::CollectiveForms forms(c.usable, c.tuning,
                                         costmodel::layout_of(c.usable, c.ranks));
  const std::int64_t bytes = *rc::gen::inRange<std::int64_t>(0, 300'000);
  for (const Algorithm a : {Algorithm::kRing, Algorithm::kTree, Algorithm::kHalvingDoubling,
                            Algorithm::kHierarchical}) {
    if (!forms.available(Collective::kAllReduce, a, Protocol::kSimple)) continue;
    const CollectiveRequest request{
        Collective::kAllReduce, bytes,
        forms.terms(Collective::kAllReduce, bytes, a, Protocol::kSimple)};
    const auto s = make_schedule(c.usable, forms, request, request.terms.repeats);
    State state;
    for (const int r : c.ranks) state[r].assign(static_cast<std::size_t>(s.pieces), {r});
    const Contributions all(c.ranks.begin(), c.ranks.end());
    for (const auto& [rank, pieces] : executed(s, state))
      for (const auto& piece : pieces) RC_ASSERT(piece == all);
  }
}

RC_GTEST_PROP(CollectiveSchedule, RingsGatherAndScatterWhatTheySay, ()) {
  const Case c = any_case();
  const costmodel::CollectiveForms forms(c.usable, c.tuning,
                                         costmodel::layout_of(c.usable, c.ranks));
  const std::int64_t bytes = *rc::gen::inRange<std::int64_t>(1, 300'000);
  const auto channels = costmodel::ring_channels(forms.group());
  const auto n = c.ranks.size();
  for (const Collective op :
       {Collective::kAllGather, Collective::kReduceScatter, Collective::kBroadcast}) {
    const CollectiveRequest request{op, bytes,
                                    forms.terms(op, bytes, Algorithm::kRing, Protocol::kSimple)};
    const auto s = make_schedule(c.usable, forms, request, request.terms.repeats);
    State state;
    for (const int r : c.ranks)
      state[r].assign(static_cast<std::size_t>(s.pieces),
                      op == Collective::kReduceScatter ? Contributions{r} : Contributions{});
    if (op == Collective::kBroadcast)
      for (auto& piece : state[forms.group().ranks[0]]) piece = {-1};
    // Slices of each part of each channel's ring.
    const auto slices = static_cast<std::size_t>(request.terms.slices);
    const auto place = [&](std::size_t ch, std::size_t i, std::size_t slice) {
      return (ch * n + i) * slices + slice;
    };
    for (std::size_t ch = 0; ch < channels.size() && op == Collective::kAllGather; ++ch)
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t k = 0; k < slices; ++k)
          state[channels[ch][i]][place(ch, i, k)] = {channels[ch][i]};
    const State end = executed(s, state);
    for (std::size_t ch = 0; ch < channels.size() && op != Collective::kBroadcast; ++ch)
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t k = 0; k < slices; ++k) {
          if (op == Collective::kReduceScatter)
            RC_ASSERT(end.at(channels[ch][i])[place(ch, i, k)] ==
                      Contributions(c.ranks.begin(), c.ranks.end()));
          for (const int r : c.ranks)
            if (op == Collective::kAllGather)
              RC_ASSERT(end.at(r)[place(ch, i, k)] == Contributions{channels[ch][i]});
        }
    for (const auto& [rank, pieces] : end)
      for (const auto& piece : pieces)
        if (op == Collective::kBroadcast) RC_ASSERT(piece == Contributions{-1});
  }
}

RC_GTEST_PROP(CollectiveSchedule, BytesThatLeaveTheRanksAreBytesThatArrive, ()) {
  const Case c = any_case();
  const costmodel::CollectiveForms forms(c.usable, c.tuning,
                                         costmodel::layout_of(c.usable, c.ranks));
  const std::int64_t n = forms.group().size(),
                     bytes = n * *rc::gen::inRange<std::int64_t>(1, 1000) * 120;
  const auto sum = [&](Collective op, Algorithm a) {
    const CollectiveRequest request{op, bytes, forms.terms(op, bytes, a, Protocol::kSimple)};
    const auto s = make_schedule(c.usable, forms, request, request.terms.repeats);
    std::map<int, std::int64_t> sent, received;
    for (const auto& step : s.steps) {
      if (step.path == CollectiveSchedule::kNoPath) continue;
      sent[s.paths[step.path].from] += s.paths[step.path].data_bytes;
      received[s.paths[step.path].to] += s.paths[step.path].data_bytes;
    }
    return std::pair{sent, received};
  };
  // 120 is a multiple of the channels of hosts of up to four devices, in two slices: nothing is
  // rounded.
  for (const auto& [op, share] :
       {std::pair{Collective::kAllReduce, 2 * (n - 1)}, std::pair{Collective::kAllGather, n - 1},
        std::pair{Collective::kReduceScatter, n - 1}}) {
    const auto [sent, received] = sum(op, Algorithm::kRing);
    for (const int r : c.ranks) {
      RC_ASSERT(sent.at(r) == share * bytes / n);
      RC_ASSERT(received.at(r) == share * bytes / n);
    }
  }
  const auto [sent, received] = sum(Collective::kAllToAll, Algorithm::kDirect);
  for (const int r : c.ranks)
    RC_ASSERT(sent.at(r) == received.at(r) && sent.at(r) == (n - 1) * bytes / n);
}

RC_GTEST_PROP(CollectiveSchedule, NoAlgorithmBeatsTheBandwidthBound, ()) {
  const Case c = any_case();
  const costmodel::CollectiveForms forms(c.usable, c.tuning,
                                         costmodel::layout_of(c.usable, c.ranks));
  const std::int64_t bytes = *rc::gen::inRange<std::int64_t>(1, 20'000'000);
  for (const Algorithm a : costmodel::kAlgorithms) {
    if (!forms.available(Collective::kAllReduce, a, Protocol::kSimple)) continue;
    const CollectiveRequest request{
        Collective::kAllReduce, bytes,
        forms.terms(Collective::kAllReduce, bytes, a, Protocol::kSimple)};
    const auto result = run_collective(c.usable, forms, request);
    RC_ASSERT(result.bottleneck_busy <= 1.0 + 1e-9);
    RC_ASSERT(result.bottleneck_busy > 0.0);
    // A rank must send 2(n-1)/n of the tensor when ranks reduce, and never less than the tensor
    // once when the switch does.
    const double n = forms.group().size(),
                 least =
                     (a == Algorithm::kNvls || a == Algorithm::kNvlsTree ? 1.0 : 2 * (n - 1) / n) *
                     static_cast<double>(bytes);
    RC_ASSERT(static_cast<double>(result.time_ps) * 1e-12 >= least / 50e9 * (1 - 1e-9));
  }
}

}  // namespace
}  // namespace orrery::sim
