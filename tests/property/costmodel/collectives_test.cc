#include "costmodel/collectives/collectives.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

using plan::Collective;

Collective any_collective() {
  return *rc::gen::element(Collective::kAllReduce, Collective::kAllGather,
                           Collective::kReduceScatter, Collective::kAllToAll,
                           Collective::kBroadcast);
}

plan::Group any_group() {
  const int size = *rc::gen::element(2, 4, 8);
  return {.name = "g", .size = size, .stride = *rc::gen::element(1, 8 / size)};
}

std::vector<model::CollectiveTimes> measured(bool points) {
  std::vector<model::CollectiveTimes> all;
  for (const std::int64_t size : {2, 4, 8}) {
    model::CollectiveTimes c{.op = Collective::kAllReduce,
                             .size = size,
                             .stride = 1,
                             .hosts = 1,
                             .bus_bandwidth = points ? 0 : 30e9,
                             .latency_seconds = 0,
                             .points = {}};
    if (points) c.points = {{1 << 10, 9e-6}, {1 << 14, 8e-6}, {1 << 20, 50e-6}, {1 << 24, 900e-6}};
    all.push_back(c);
  }
  return all;
}

RC_GTEST_PROP(Collectives, MoreBytesNeverTakeLess, ()) {
  const auto topology = machines::cluster(8);
  const int source = *rc::gen::inRange(0, 3);
  const CollectivePrices prices(
      topology, source == 0 ? std::vector<model::CollectiveTimes>{} : measured(source == 1));
  const auto op = any_collective();
  const auto group = any_group();
  const auto bytes = *rc::gen::inRange<std::int64_t>(0, 1 << 26),
             more = bytes + *rc::gen::inRange<std::int64_t>(0, 1 << 20);
  // One part in 10^9: a measured time becomes an integer rate.
  const auto less_ps = prices.collective(op, group, bytes, 0, 8).duration_ps();
  RC_ASSERT(less_ps <=
            prices.collective(op, group, more, 0, 8).duration_ps() + less_ps / 100'000'000 + 1);
}

RC_GTEST_PROP(Collectives, MoreBandwidthIsNeverSlower, ()) {
  const auto slow = *rc::gen::inRange<std::int64_t>(1'000'000, 1'000'000'000);
  const auto fast = slow + *rc::gen::inRange<std::int64_t>(0, 1'000'000'000);
  const auto a = machines::cluster(8, 1, slow), b = machines::cluster(8, 1, fast);
  const auto op = any_collective();
  const auto group = any_group();
  const auto bytes = *rc::gen::inRange<std::int64_t>(0, 1 << 26);
  RC_ASSERT(CollectivePrices(b, {}).collective(op, group, bytes, 0, 8).duration_ps() <=
            CollectivePrices(a, {}).collective(op, group, bytes, 0, 8).duration_ps());
}

RC_GTEST_PROP(Collectives, AnAllReduceIsAReduceScatterAndAnAllGather, ()) {
  const auto topology = machines::cluster(8);
  const CollectivePrices prices(topology, {});
  const auto group = any_group();
  const auto bytes = group.size * *rc::gen::inRange<std::int64_t>(0, 1 << 20);
  const auto ps = [&](Collective op) {
    return prices.collective(op, group, bytes, 0, 8).duration_ps();
  };
  const auto halves = ps(Collective::kReduceScatter) + ps(Collective::kAllGather);
  RC_ASSERT(halves - ps(Collective::kAllReduce) >= 0);
  RC_ASSERT(halves - ps(Collective::kAllReduce) <= 1);
}

}  // namespace
}  // namespace orrery::costmodel
