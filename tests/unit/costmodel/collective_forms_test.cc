#include "costmodel/collectives/collective_forms.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/costmodel/machines.h"
#include "tests/unit/costmodel/tunings.h"

namespace orrery::costmodel {
namespace {

using Op = model::Collective;

std::vector<int> first(int n) {
  std::vector<int> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}
std::int64_t price(const topologies::Topology& machine, const CollectiveTuning& tuning, int ranks,
                   Op op, std::int64_t bytes, Algorithm a, Protocol p) {
  const auto usable = usable_rates(machine, tuning);
  const CollectiveForms forms(usable, tuning, layout_of(usable, first(ranks)));
  return forms.time_ps(op, forms.terms(op, bytes, a, p));
}

// tunings.h: base 10, 20, 40 us, hops 1, 2, 4 us in a host, shares 1/2, 0.8, 1; links at half their
// rate: 50 of 100 GB/s; copy 1 TB/s.
TEST(CollectiveForms, RingInOneHostIsStepsOfLatencyAndShare) {
  const auto machine = machines::cluster(4);
  // Simple: 40 us + 6 * (4 us + 1 MB / 50 GB/s) + 1 MB / 1 TB/s = 40 + 6 * 24 + 1
  EXPECT_EQ(price(machine, tunings::round_numbers(), 4, Op::kAllReduce, 4'000'000, Algorithm::kRing,
                  Protocol::kSimple),
            185'000'000);
  // LL: 10 us + 3 * (1 us + 2 MB / 50 GB/s)
  EXPECT_EQ(price(machine, tunings::round_numbers(), 4, Op::kAllGather, 4'000'000, Algorithm::kRing,
                  Protocol::kLL),
            133'000'000);
}

TEST(CollectiveForms, ASecondSliceHidesTheNetworksLatencyButNotTheHostsHops) {
  const auto gather = [](const topologies::Topology& machine, int ranks, std::int64_t bytes) {
    return price(machine, tunings::round_numbers(), ranks, Op::kAllGather, bytes, Algorithm::kRing,
                 Protocol::kSimple);
  };
  // One device a host, 10 GB/s: slices of 50 us hide a hop of 40: 40 us + 3 * 100 us + 40 us + 1 us
  EXPECT_EQ(gather(machines::cluster(1, 4), 4, 4'000'000), 381'000'000);
  // Slices of 5 us do not: 40 us + 2 * 45 us + 10 us + 40 us + 0.1 us
  EXPECT_EQ(gather(machines::cluster(1, 4), 4, 400'000), 180'100'000);
  // Two rings share a host's card: slices of 50 us. Of three steps two are hops of 4 us in a host,
  // a sixth of that for each slice, and one takes 40 us over the network, 13.3 us on average:
  // 40 us + 3 * (100 us + 8 us / 3) + 40 us / 3 + 1 us
  EXPECT_EQ(gather(machines::cluster(2, 2), 4, 4'000'000), 362'333'331);
}

TEST(CollectiveForms, NvlsReducesInTheSwitch) {
  const auto machine = machines::cluster(4);
  // 64 KiB a device fill the tensor 16 times: chunks of 250 kB, 62.5 kB of each, 125 kB on the
  // wire: 100 us + 2 * 4 * 125 kB / 50 GB/s + 17 * 5 * 125 kB / 50 GB/s, two of them of copying
  EXPECT_EQ(price(machine, tunings::round_numbers(), 4, Op::kAllReduce, 4'000'000, Algorithm::kNvls,
                  Protocol::kSimple),
            332'500'000);
}

TEST(CollectiveForms, AtMostSoManyDevicesReduceAsTheSwitchServes) {
  const auto machine = machines::cluster(8);
  // Four heads of eight devices reduce a quarter each: chunks and wire as in a host of four.
  EXPECT_EQ(price(machine, tunings::round_numbers(), 8, Op::kAllReduce, 4'000'000, Algorithm::kNvls,
                  Protocol::kSimple),
            332'500'000);
}

TEST(CollectiveForms, AnNvlsTreePassesChunksOnAtThePaceOfItsHeads) {
  const auto tuning = tunings::round_numbers();
  // 16 pieces of 4 MB, 1 MB for each head. In the host 2 MB on the wire: 160 us at a quarter of 50
  // GB/s, 200 us at a fifth. Between hosts, half of it on each tree, 200 us at the head's pace, 400
  // us at a quarter of the card that four heads share, half of it while the pipeline fills. 100 us
  // + 2 * 200 us + 2 * 160 us + 2 * (20 us + 200 us) + 15 * 400 us
  const auto two = machines::cluster(4, 2);
  EXPECT_EQ(
      price(two, tuning, 8, Op::kAllReduce, 64'000'000, Algorithm::kNvlsTree, Protocol::kSimple),
      7'260'000'000);
  // Three hosts, two levels, half the rate: 320 and 400 us; twelve flows of halves on the narrowest
  // card, 600 us and a picosecond. 100 us + 2 * 400 us + 2 * 320 us + 4 * (20 us + 400 us) + 15 *
  // 600.000001 us
  const auto three = machines::cluster(4, 3);
  EXPECT_EQ(
      price(three, tuning, 12, Op::kAllReduce, 64'000'000, Algorithm::kNvlsTree, Protocol::kSimple),
      12'220'000'015);
}

TEST(CollectiveForms, DirectExchangeSharesTheDevicesLinkAmongAllPeers) {
  const auto machine = machines::cluster(4);
  // Simple: 30 us + 1 MB / (50 GB/s / 3) + 1 MB / 1 TB/s
  EXPECT_EQ(price(machine, tunings::round_numbers(), 4, Op::kAllToAll, 4'000'000,
                  Algorithm::kDirect, Protocol::kSimple),
            30'000'000 + 60'000'001 + 1'000'000);
}

TEST(CollectiveForms, HalvingDoublingSendsHalvesAndQuarters) {
  const auto machine = machines::cluster(4);
  // 40 us + 2 * (4 us + 2 MB / 50 GB/s) + 2 * (4 us + 1 MB / 50 GB/s)
  EXPECT_EQ(price(machine, tunings::round_numbers(), 4, Op::kAllReduce, 4'000'000,
                  Algorithm::kHalvingDoubling, Protocol::kSimple),
            176'000'000);
}

TEST(CollectiveForms, SmallMessagesTakeLowLatencyAndLargeOnesFullRate) {
  const auto machine = machines::cluster(4);
  const auto tuning = tunings::round_numbers();
  const auto usable = usable_rates(machine, tuning);
  const CollectiveForms forms(usable, tuning, layout_of(usable, first(4)));
  EXPECT_EQ(forms.choose(Op::kAllGather, 1000)->protocol, Protocol::kLL);
  EXPECT_EQ(forms.choose(Op::kAllGather, 1'000'000'000)->protocol, Protocol::kSimple);
  EXPECT_EQ(forms.choose(Op::kAllToAll, 1000)->algorithm, Algorithm::kDirect);
  EXPECT_FALSE(forms.choose(Op::kAllGather, 1000, Algorithm::kNvls).has_value());
}

TEST(CollectiveForms, MoreBytesNeverTakeLess) {
  const auto machine = machines::cluster(4, 2);
  const auto tuning = *find_tuning("hopper", "");
  const auto usable = usable_rates(machine, tuning);
  const CollectiveForms forms(usable, tuning, layout_of(usable, first(8)));
  for (const Algorithm a :
       {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kHierarchical}) {
    std::int64_t before = 0;
    for (std::int64_t bytes = 1; bytes <= std::int64_t{1} << 32; bytes *= 2) {
      const std::int64_t time =
          forms.time_ps(Op::kAllReduce, forms.terms(Op::kAllReduce, bytes, a, Protocol::kSimple));
      EXPECT_GE(time, before) << to_string(a) << " of " << bytes;
      before = time;
    }
  }
}

TEST(BusFactor, IsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Op::kAllReduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kAllGather, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kBroadcast, 8), 1.0);
}

TEST(FindTuning, KnowsTheArchitectureOfADevice) {
  EXPECT_EQ(find_tuning("published", "H100-SXM5-80GB")->name, "hopper");
  EXPECT_EQ(find_tuning("published", "GB200-186GB")->name, "blackwell");
  EXPECT_EQ(find_tuning("published", "RX 7900")->name, "generic");
}

TEST(FindTuning, EveryShippedRecordReads) {
  const auto names = list_tunings();
  EXPECT_GE(names.size(), 11U);
  for (const auto& name : names) {
    const auto tuning = find_tuning(name, "");
    ASSERT_TRUE(tuning.has_value()) << base::to_string(tuning.error());
    EXPECT_EQ(tuning->name, name);
    EXPECT_FALSE(tuning->source.empty());
  }
}

TEST(FindTuning, ProposesANameThatExists) {
  const auto tuning = find_tuning("hoper", "");
  ASSERT_FALSE(tuning.has_value());
  EXPECT_NE(tuning.error()[0].hint.find("hopper"), std::string::npos);
}

TEST(ParseTuning, ReportsEveryFaultWithItsPlace) {
  const auto tuning = parse_tuning(
      R"({"schema": "orrery.collective_tuning/1", "name": "x", "description": "d", "source": "s",
 "devices": [],
 "link_efficiency": {"nvlink": 1.5}, "network_overhead": "2 s", "channels": 0,
  "local_copy": "1 GB/s",
 "ring": {"base": ["1 us", "2 us"]}})",
      "t.json");
  ASSERT_FALSE(tuning.has_value());
  const std::string text = base::to_string(tuning.error());
  for (const char* part : {"t.json:3:32", "between 0 and 1 s", "channels",
                           "2 values where 3 are meant", "tree", "direct"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

}  // namespace
}  // namespace orrery::costmodel
