/// The closed form of a collective against its messages on the flow network, on random machines.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "tests/unit/costmodel/machines.h"
#include "tests/unit/costmodel/tunings.h"
#include "tests/unit/sim/collective_scene.h"

namespace orrery::sim {
namespace {

using costmodel::Algorithm;
using costmodel::Protocol;
using model::Collective;

RC_GTEST_PROP(CollectiveAgainstClosedForm, EqualStepsAgreeToThePicosecond, ()) {
  const int devices = *rc::gen::inRange(2, 9);
  const testing::CollectiveScene f(
      costmodel::machines::cluster(devices, 1,
                                   *rc::gen::inRange<std::int64_t>(1'000'000'000, 900'000'000'000)),
      costmodel::tunings::round_numbers(), devices);
  const std::int64_t bytes = *rc::gen::inRange<std::int64_t>(1, 50'000'000);
  const Protocol p = *rc::gen::element(Protocol::kLL, Protocol::kLL128, Protocol::kSimple);
  for (const Collective op :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
    const auto r = f.request(op, bytes, Algorithm::kRing, p);
    RC_ASSERT(
        run_schedule(f.usable, make_schedule(f.usable, f.forms, r, r.terms.repeats)).time_ps ==
        f.closed(r));
    RC_ASSERT(run_collective(f.usable, f.forms, r).time_ps == f.closed(r));
  }
  const auto halving = f.request(Collective::kAllReduce, bytes, Algorithm::kHalvingDoubling, p);
  RC_ASSERT(run_collective(f.usable, f.forms, halving).time_ps == f.closed(halving));
  const auto direct = f.request(Collective::kAllToAll, bytes, Algorithm::kDirect);
  RC_ASSERT(run_collective(f.usable, f.forms, direct).time_ps == f.closed(direct));
  const auto chain = f.request(Collective::kBroadcast, bytes, Algorithm::kRing, p);
  RC_ASSERT(run_schedule(f.usable, make_schedule(f.usable, f.forms, chain, chain.terms.repeats))
                .time_ps == f.closed(chain));
}

RC_GTEST_PROP(CollectiveAgainstClosedForm, ATensorThatIsMostlyWireReachesTheBandwidthBound, ()) {
  const int devices = *rc::gen::inRange(2, 9);
  const testing::CollectiveScene f(costmodel::machines::cluster(devices),
                                   costmodel::tunings::round_numbers(), devices);
  const std::int64_t bytes = 400'000'000'000;
  const auto result =
      run_collective(f.usable, f.forms, f.request(Collective::kAllReduce, bytes, Algorithm::kRing));
  const double n = devices, bound = 2 * (n - 1) / n * static_cast<double>(bytes) / 50e9;
  const double copy = static_cast<double>(bytes) / n / 1e12;
  RC_ASSERT(std::abs(static_cast<double>(result.time_ps) * 1e-12 - copy - bound) < 1e-3 * bound);
  RC_ASSERT(result.bottleneck_busy > 0.9);
}

RC_GTEST_PROP(CollectiveAgainstClosedForm, PipelinesAgreeWithinTheirFilling, ()) {
  const int devices = *rc::gen::inRange(1, 5), hosts = *rc::gen::inRange(2, 6);
  const testing::CollectiveScene f(costmodel::machines::cluster(devices, hosts),
                                   costmodel::tunings::round_numbers(), devices * hosts);
  const std::int64_t bytes = *rc::gen::inRange<std::int64_t>(1000, 100'000'000);
  for (const Algorithm a :
       {Algorithm::kRing, Algorithm::kTree, Algorithm::kNvlsTree, Algorithm::kHierarchical}) {
    if (!f.forms.available(Collective::kAllReduce, a, Protocol::kSimple)) continue;
    const auto r = f.request(Collective::kAllReduce, bytes, a);
    const double simulated = static_cast<double>(run_collective(f.usable, f.forms, r).time_ps),
                 closed = static_cast<double>(f.closed(r));
    RC_ASSERT(simulated <= closed * 1.25);
    RC_ASSERT(simulated >= closed * 0.6);
  }
}

}  // namespace
}  // namespace orrery::sim
