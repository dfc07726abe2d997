#include "costmodel/collectives/collective_choice.h"

#include <gtest/gtest.h>

#include "costmodel/collectives/collective_forms.h"
#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

using Op = model::Collective;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

double expected_us(const char* tuning, const GroupOnMachine& group, Op op, std::int64_t bytes,
                   Algorithm a, Protocol p) {
  return 1e6 * expected_seconds(*find_tuning(tuning, ""), group, op, bytes, a, p);
}

/// Eight H100 on a switch: 450 GB/s of links, 82.4 % of which NCCL counts on.
GroupOnMachine eight_h100() {
  return {.ranks = 8,
          .hosts = 1,
          .nvls_heads = 8,
          .rings = base::BytesPerSecond(370.8e9),
          .switch_link = base::BytesPerSecond(370.8e9)};
}

/// Two hosts of eight A100 with a card of 200 Gb/s each.
GroupOnMachine sixteen_a100() {
  return {.ranks = 16,
          .hosts = 2,
          .nvls_heads = 8,
          .rings = base::BytesPerSecond(192e9),
          .switch_link = base::BytesPerSecond(240e9)};
}

TEST(ExpectedTime, OfARingIsLatencyAndBytesOverItsBandwidth) {
  const auto group = eight_h100();
  // 6.6 + 7 * 0.6 us, 141 GB/s of 185.4 at most; 14 + 7 * 1.9 us, 0.92 of the links; 8.4 + 7 * 3.4
  // us, all of them; each by 8/7
  EXPECT_NEAR(
      expected_us("hopper", group, Op::kAllGather, 8 * kMiB, Algorithm::kRing, Protocol::kLL),
      10.8 + 52.056, 0.01);
  EXPECT_NEAR(
      expected_us("hopper", group, Op::kAllGather, 8 * kMiB, Algorithm::kRing, Protocol::kLL128),
      27.3 + 21.516, 0.01);
  EXPECT_NEAR(
      expected_us("hopper", group, Op::kAllGather, 8 * kMiB, Algorithm::kRing, Protocol::kSimple),
      32.2 + 19.795, 0.01);
}

TEST(ExpectedTime, OfNvlsCountsBothOperationsOfTheSwitch) {
  // 33.4 us; 2 * 7/8 * 0.85 * 370.8 GB/s * 8/14
  EXPECT_NEAR(expected_us("hopper", eight_h100(), Op::kAllReduce, 64 * kMiB, Algorithm::kNvls,
                          Protocol::kSimple),
              33.4 + 212.92, 0.02);
}

TEST(ExpectedTime, OfATreeOnTwoHostsLoadsACardHalfAsMuchAsARing) {
  const auto group = sixteen_a100();
  // 0.92 of 240 GB/s (less than twice 192), 15/16 of that, half of it: 103.5 GB/s; 14 + 2 * (7 *
  // 1.25 + 8.5) us
  EXPECT_NEAR(
      expected_us("ampere", group, Op::kAllReduce, 512 * kMiB, Algorithm::kTree, Protocol::kLL128),
      48.5 + 5187.2, 0.1);
  // Simple: 110.4 GB/s, 0.9 of it at this size; 8.4 + 2 * (7 * 4 + 14) us
  EXPECT_NEAR(
      expected_us("ampere", group, Op::kAllReduce, 512 * kMiB, Algorithm::kTree, Protocol::kSimple),
      92.4 + 5403.3, 0.1);
  // Ring: 192 GB/s * 16/30; 1.4 * (8.4 + 28 * 3.4 + 2 * 14) us
  EXPECT_NEAR(
      expected_us("ampere", group, Op::kAllReduce, 512 * kMiB, Algorithm::kRing, Protocol::kSimple),
      184.24 + 5242.9, 0.1);
}

TEST(ExpectedTime, OfAnNvlsTreeIsBoundByTheCardsOrAHeadsLimit) {
  // Twenty racks, 32 heads with cards of 48 GB/s: 32 * 48 GB/s * 1440/2878; 33.4 + 2 * 4 * 20.9 us
  const GroupOnMachine racks{.ranks = 1440,
                             .hosts = 20,
                             .nvls_heads = 32,
                             .rings = base::BytesPerSecond(1536e9),
                             .switch_link = base::BytesPerSecond(721.8e9)};
  // less than the cards
  const double links = 2 * 31.0 / 32 * 0.74 * 721.8e9, bandwidth = links * 1440 / 2878;
  EXPECT_NEAR(expected_us("blackwell", racks, Op::kAllReduce, 1024 * kMiB, Algorithm::kNvlsTree,
                          Protocol::kSimple),
              200.6 + 1e6 * 1073741824 / bandwidth, 0.1);
  const GroupOnMachine hosts{.ranks = 32,
                             .hosts = 4,
                             .nvls_heads = 8,
                             .rings = base::BytesPerSecond(800e9),
                             .switch_link = base::BytesPerSecond(721.8e9)};
  // 8 heads of 80 GB/s each
  EXPECT_NEAR(expected_us("blackwell", hosts, Op::kAllReduce, 1024 * kMiB, Algorithm::kNvlsTree,
                          Protocol::kSimple),
              117.0 + 1e6 * 1073741824 / (640e9 * 32 / 62), 0.1);
}

TEST(Choice, ChangesTheProtocolOfTheTreeWhereMeasuredTimesJump) {
  // Measured: 83 GB/s at 512 MiB, 117 GB/s at 1 GiB
  // (experiments/collectives/measured/all_reduce.csv).
  const auto least = [](std::int64_t bytes) {
    std::pair<Algorithm, Protocol> best;
    double time = 1e9;
    for (const Algorithm a : {Algorithm::kRing, Algorithm::kTree})
      for (const Protocol p : kProtocols)
        if (const double t = expected_us("ampere", sixteen_a100(), Op::kAllReduce, bytes, a, p);
            t < time)
          time = t, best = {a, p};
    return best;
  };
  EXPECT_EQ(least(512 * kMiB), std::pair(Algorithm::kTree, Protocol::kLL128));
  EXPECT_EQ(least(1024 * kMiB), std::pair(Algorithm::kTree, Protocol::kSimple));
}

TEST(Choice, IsThatOfThePublishedConstantsWhateverAMachineMeasured) {
  const auto measured = find_tuning("b200-measured", "");
  ASSERT_TRUE(measured.has_value());
  EXPECT_EQ(measured->by_which_nccl_chooses().name, "blackwell");
  EXPECT_EQ(find_tuning("blackwell", "")->by_which_nccl_chooses().name, "blackwell");
  // LL128 is slow on this machine (measured), and NCCL takes it all the same.
  const auto machine = machines::cluster(8);
  const auto usable = usable_rates(machine, *measured);
  std::vector<int> ranks{0, 1, 2, 3, 4, 5, 6, 7};
  CollectiveTuning slow = *measured;
  slow.ring.ll128_channel_limit = base::BytesPerSecond(1e9);
  const CollectiveForms now(usable, *measured, layout_of(usable, ranks)),
      then(usable, slow, layout_of(usable, ranks));
  bool any = false;
  for (std::int64_t bytes = 1024; bytes <= 1024 * kMiB; bytes *= 2) {
    const auto a = now.choose(Op::kAllGather, bytes), b = then.choose(Op::kAllGather, bytes);
    EXPECT_EQ(a->protocol, b->protocol) << bytes;
    any = any || (a->protocol == Protocol::kLL128 && b->time_ps > a->time_ps);
  }
  EXPECT_TRUE(any);
}

TEST(ParseTuning, RefusesAChooserThatIsNotPublished) {
  const auto tuning = parse_tuning(R"({"schema": "orrery.collective_tuning/1",
 "chosen_by": "b200-measured"})",
                                   "t.json");
  ASSERT_FALSE(tuning.has_value());
  EXPECT_NE(base::to_string(tuning.error()).find("t.json:2:"), std::string::npos);
  EXPECT_NE(base::to_string(tuning.error()).find("no published tuning 'b200-measured'"),
            std::string::npos);
}

}  // namespace
}  // namespace orrery::costmodel
