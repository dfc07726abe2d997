#include "costmodel/collectives/host_copies.h"

#include <gtest/gtest.h>

#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

HostCopies::Way way(const topologies::Topology& topology, bool to_host, int first = 0,
                    int count = 1) {
  return HostCopies(topology).slowest(to_host, first, count).value();
}

TEST(HostCopies, DevicesShareALinkEvenly) {
  const auto machine = machines::with_processor(4, 10'000'000'000);
  for (const bool to_host : {true, false}) {
    EXPECT_EQ(way(machine, to_host).bytes_per_second, 2'500'000'000);
    EXPECT_EQ(way(machine, to_host).latency_ps, 2'000'000);
  }
}

TEST(HostCopies, OfTheCatalogTakeTheWaysOfItsTopologies) {
  const auto rate = [](const char* cluster, std::uint32_t hosts) {
    const auto topology = topologies::catalog_topology(cluster, hosts).value();
    const auto ranks = static_cast<int>(topology.device_count());
    return way(topology, true, 0, ranks).bytes_per_second;
  };
  EXPECT_EQ(rate("dgx-a100", 1), 31'508'000'000 / 2);  // two behind one switch
  EXPECT_EQ(rate("dgx-a100", 4), 31'508'000'000 / 2);
  EXPECT_GT(rate("dgx-h100", 2), 60'000'000'000);      // one each
  EXPECT_EQ(rate("gb200-nvl72", 1), 225'000'000'000);  // C2C, of two that share a Grace
  const auto mixed = topologies::catalog_topology("mixed-h100-a100", 1).value();
  EXPECT_EQ(way(mixed, true, 0, static_cast<int>(mixed.device_count())).bytes_per_second,
            31'508'000'000 / 2);
}

TEST(HostCopies, AreNoneWithoutABridge) {
  const auto machine = machines::cluster(4);
  EXPECT_FALSE(HostCopies(machine).slowest(true, 0, 4).has_value());
}

}  // namespace
}  // namespace orrery::costmodel
