// --set: a topology with numbers that are otherwise is that of an edited file.
#include "topologies/import/settings.h"

#include <gmock/gmock.h>

#include "base/file.h"
#include "topologies/import/import.h"
#include "topologies/topology.h"

namespace orrery::topologies {
namespace {

using testing::HasSubstr;

base::Result<Topology> with(const std::string& settings, std::string_view cluster = "dgx-h100",
                            uint32_t hosts = 2) {
  TRY(const auto parsed, base::parse_settings(settings));
  return catalog_topology(cluster, hosts, parsed);
}

std::string fault(const std::string& settings, std::string_view cluster = "dgx-h100") {
  const auto topology = with(settings, cluster);
  return topology ? "no fault" : base::to_string(topology.error());
}

int64_t rate_of(const Topology& t, std::string_view kind) {
  for (const Link& link : t.links())
    if (link.kind == kind) return link.bytes_per_second;
  return 0;
}

TEST(Settings, ScaleEveryLinkOfAKindAndNoOther) {
  const auto before = with("ib.bandwidth=1x"), after = with("ib.bandwidth=2x");
  ASSERT_TRUE(before && after);
  ASSERT_EQ(before->links().size(), after->links().size());
  for (std::size_t i = 0; i < before->links().size(); ++i) {
    const Link &a = before->links()[i], &b = after->links()[i];
    EXPECT_EQ(b.bytes_per_second, a.bytes_per_second * (a.kind == "ib" ? 2 : 1)) << a.kind;
    EXPECT_EQ(a.latency, b.latency);
  }
}

TEST(Settings, OfFactorOneLeaveTheFingerprint) {
  EXPECT_EQ(with("nvlink.bandwidth=1x")->fingerprint(),
            catalog_topology("dgx-h100", 2)->fingerprint());
  EXPECT_NE(with("nvlink.latency=2x")->fingerprint(),
            catalog_topology("dgx-h100", 2)->fingerprint());
}

TEST(Settings, AreThoseOfAnEditedFile) {
  // A host's NVLink is 18 lanes of 25 GB/s; the setting states all of them together.
  EXPECT_EQ(rate_of(*with("nvlink.bandwidth=900GB/s"), "nvlink"), 900'000'000'000);
  EXPECT_EQ(rate_of(*with("fabric.bandwidth=800 Gb/s"), "ib"), 100'000'000'000);
  const auto t = with("device.memory=96GiB,H100-SXM5-80GB.peak_bf16=0.5x,device.power=350W");
  ASSERT_TRUE(t);
  EXPECT_EQ(t->device_model(0).memory_bytes, std::int64_t{96} << 30);
  EXPECT_DOUBLE_EQ(t->device_model(0).peak_bf16.raw(), 494.7e12);
  EXPECT_DOUBLE_EQ(t->device_model(0).power.raw(), 350);
}

TEST(Settings, ReachOneDeviceModelOfAMixedClusterByItsName) {
  const auto t = with("A100-SXM4-80GB.memory=40GiB", "mixed-h100-a100", 1);
  ASSERT_TRUE(t) << base::to_string(t.error());
  for (const DeviceModel& m : t->device_models())
    EXPECT_EQ(m.memory_bytes, std::int64_t{m.name == "A100-SXM4-80GB" ? 40 : 80} << 30) << m.name;
}

TEST(Settings, OversubscribeUplinks) {
  const auto halved = with("fabric.oversubscription=8", "a100-leaf-spine-4to1", 8),
             built = with("fabric.oversubscription=4", "a100-leaf-spine-4to1", 8);
  ASSERT_TRUE(halved && built);
  EXPECT_EQ(built->fingerprint(), catalog_topology("a100-leaf-spine-4to1", 8)->fingerprint());
  EXPECT_NE(built->fingerprint(), halved->fingerprint());
}

// Only hashed paths have queue pairs.
TEST(Settings, QueuePairsAreOfHashedPaths) {
  EXPECT_THAT(fault("fabric.queue_pairs=4"), HasSubstr("'fabric' has no 'queue_pairs'"));
}

TEST(Settings, ThatFindNothingSayWhatThereIs) {
  EXPECT_THAT(fault("ethernet.bandwidth=2x"), HasSubstr("parts: H100-SXM5-80GB, device, fabric"));
  EXPECT_THAT(fault("ib.bandwith=2x"), HasSubstr("did you mean 'bandwidth'?"));
  EXPECT_THAT(fault("ib.bandwidth=200"), HasSubstr("'ib.bandwidth=200': '200' has no unit"));
  EXPECT_THAT(fault("device.memory=0B"), HasSubstr("outside"));
  EXPECT_THAT(fault("ib.latency=2s"), HasSubstr("outside 0 .. 1"));
  EXPECT_THAT(fault("fabric.oversubscription=half"), HasSubstr("a number or a factor"));
  EXPECT_THAT(fault("nvlink.bandwidth=2x", "local"), HasSubstr("orrery topology detect"));
}

TEST(Settings, ThatAreWrongAreAllSaid) {
  EXPECT_THAT(fault("ib.bandwith=2x,nvlink.bandwidth=7"),
              testing::AllOf(HasSubstr("bandwith"), HasSubstr("'7' has no unit")));
}

}  // namespace
}  // namespace orrery::topologies
