// Groups that span hosts: a ring for every card that members are next to.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "costmodel/collectives/collectives.h"

namespace orrery::costmodel {
namespace {

using plan::Collective;
using topologies::Topology;
using topologies::VertexKind;

constexpr std::int64_t kGiB = 1 << 30;

Topology machine(const char* cluster, std::uint32_t hosts) {
  return topologies::catalog_topology(cluster, hosts).value();
}
Transfer priced(const Topology& t, Collective op, int size, int stride, std::int64_t bytes,
                Senders senders = Senders::kOfClass) {
  const CollectivePrices prices(t, {});
  return prices.collective(op, {.name = "g", .size = size, .stride = stride}, bytes, 0,
                           static_cast<int>(t.device_count()), senders);
}
bool leaves_card(const Topology& t, const LinkLoad& load) {
  return t.vertex(t.link(load.link).from).kind == VertexKind::kNic && !t.in_host(t.link(load.link));
}
/// Bytes over the busiest wire between hosts.
double card_bytes(const Topology& t, const Transfer& transfer) {
  std::int64_t flows = 0;
  for (const LinkLoad& load : transfer.links)
    if (leaves_card(t, load)) flows = std::max(flows, load.flows);
  return static_cast<double>(flows) * static_cast<double>(transfer.wire_bytes);
}

// k members on each of two hosts: a card carries 2(n-1)/n S / k.
TEST(Rings, EveryCardCarriesItsPart) {
  const Topology t = machine("dgx-a100", 2);
  for (const int k : {1, 2, 4, 8}) {
    const int n = 2 * k;
    const Transfer ring = priced(t, Collective::kAllReduce, n, 8 / k, kGiB);
    const double wire = 2.0 * (n - 1) / n * kGiB;
    EXPECT_NEAR(card_bytes(t, ring), wire / k, 16) << k;
    const double seconds = static_cast<double>(ring.duration_ps() - ring.latency_ps) / 1e12;
    EXPECT_NEAR(wire / k / seconds / 25e9, 1, 0.01) << k;  // its 200 Gb/s, nothing else
  }
}

TEST(Rings, OfOneMemberAHostStayOutOfNvLink) {
  const Topology t = machine("dgx-h100", 4);
  const Transfer ring = priced(t, Collective::kAllGather, 4, 8, kGiB);
  for (const LinkLoad& load : ring.links) EXPECT_NE(t.link(load.link).kind, "nvlink");
}

TEST(Rings, OfOneHostLoadNoCard) {
  const Topology t = machine("dgx-h100", 2);
  EXPECT_EQ(card_bytes(t, priced(t, Collective::kAllReduce, 8, 1, kGiB)), 0);
}

// Wires join cards of equal place: a rail's leaf carries them, no spine does.
TEST(Rings, OfAnEvenNumberOfHostsStayOnTheirRails) {
  const Topology t = machine("h100-rail-optimised", 16);
  const auto switches = [&](int n, int stride) {
    std::set<std::uint32_t> crossed;
    for (const LinkLoad& load : priced(t, Collective::kReduceScatter, n, stride, kGiB).links) {
      const topologies::Link& link = t.link(load.link);
      if (t.in_host(link)) continue;
      EXPECT_TRUE(t.vertex(link.from).kind == VertexKind::kNic ||
                  t.vertex(link.to).kind == VertexKind::kNic);
      crossed.insert((t.vertex(link.from).kind == VertexKind::kNic ? link.to : link.from).raw());
    }
    return crossed.size();
  };
  EXPECT_EQ(switches(32, 1), 8U);
  EXPECT_EQ(switches(16, 2), 8U);
}

TEST(Rings, WholeGroupsAreTheSumOfTheirMembers) {
  const Topology t = machine("dgx-h100", 3);
  const CollectivePrices prices(t, {});
  const plan::Group group{.name = "g", .size = 12, .stride = 2};
  const auto part = [&](int first, int count, Senders senders) {
    return prices.collective(Collective::kAllReduce, group, kGiB, first, count, senders);
  };
  const Transfer all = part(0, 24, Senders::kWholeGroups);
  EXPECT_EQ(all.wire_bytes, part(0, 8, Senders::kOfClass).wire_bytes);
  std::vector<std::int64_t> flows(t.links().size(), 0);
  for (int rank = 0; rank < 24; ++rank)
    for (const LinkLoad& load : part(rank, 1, Senders::kOfClass).links)
      flows[load.link.raw()] += load.flows;
  for (const LinkLoad& load : all.links) EXPECT_EQ(flows[load.link.raw()], load.flows);
}

// n-1 peers, n-k of them elsewhere: S/n to each.
TEST(AllToAll, SendsOverACardWhatOtherHostsGet) {
  const Topology t = machine("dgx-h100", 4);
  const Transfer exchange = priced(t, Collective::kAllToAll, 32, 1, kGiB);
  EXPECT_NEAR(card_bytes(t, exchange), 24.0 / 32 * kGiB, 64);
}

}  // namespace
}  // namespace orrery::costmodel
