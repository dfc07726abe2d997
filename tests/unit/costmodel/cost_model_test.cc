#include "costmodel/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/data_dir.h"
#include "costmodel/profiles/profiles.h"
#include "plan/lowering/lower.h"
#include "tests/support/operation_time.h"
#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

base::Result<CostModel> make(std::optional<model::Profile> profile) {
  return CostModel::make(*model::find_model("llama-2-7b"), machines::cluster(2), std::move(profile),
                         {model::Precision::kBFloat16, 2048});
}

model::Profile profile(const char* device) {
  model::Profile p;
  p.name = "test";
  p.device = device;
  return p;
}

TEST(CostModel, WithoutAProfilePricesComeFromTheDatasheet) {
  const auto cost = make(std::nullopt);
  ASSERT_TRUE(cost.has_value());
  EXPECT_EQ(cost->compute_origin(), Origin::kDatasheet);
  EXPECT_EQ(cost->communication_origin(), Origin::kDatasheet);
  EXPECT_EQ(cost->overlap_slowdown_ppm(), 1'000'000);
  EXPECT_TRUE(cost->overlaps());
  EXPECT_EQ(cost->peak().raw(), 100e12);
}

// Eight experts on two ranks or two hosts, two choices a token: both are on one of two parts with
// 2 C(4, 2) / C(8, 2) = 3 / 7, so 11 / 7 copies travel in place of 2; one rank a host: the same.
TEST(CostModel, TokensAreSentOnceToEachRankOrHost) {
  const model::ModelSpec mixture = *model::find_model("mixtral-tiny");
  ASSERT_EQ(mixture.capacity_factor, 1);
  plan::LayerContext context;
  context.sequence = 64;
  context.micro_batch_sequences = context.global_batch = 8;
  const auto sent = [&](int devices, int hosts, int ranks, bool once) {
    model::Profile p = profile("");
    p.framework = model::Framework{.tokens_sent_once = once};
    const auto cost = CostModel::make(mixture, machines::cluster(devices, hosts), p,
                                      {model::Precision::kBFloat16, 64});
    const plan::LayerTemplates t = plan::lower_block(mixture, {.dp = ranks, .ep = ranks}, context);
    for (const plan::Op& op : t.program.templates[t.forward].ops) {
      if (op.collective != plan::Collective::kAllToAll || op.kind != plan::OpKind::kCollective)
        continue;
      EXPECT_EQ(op.bytes, 8 / ranks * 64 * 2 * 128 * 2);
      return real(cost->wire_bytes(t.program, op)) / real(op.bytes);
    }
    return 0.0;
  };
  EXPECT_EQ(sent(4, 1, 2, false), 1);
  EXPECT_NEAR(sent(4, 1, 2, true), 11.0 / 14, 1e-5);
  EXPECT_NEAR(sent(1, 2, 2, true), 11.0 / 14, 1e-5);
  // two hosts of two ranks: 11 / 7 over the network; four ranks of one host: 4 (1 - 15 / 28)
  EXPECT_NEAR(sent(2, 2, 4, true), 11.0 / 14, 1e-5);
  EXPECT_NEAR(sent(4, 1, 4, true), 26.0 / 28, 1e-5);
}

using Carrier = SpeedScale::Carrier;

std::int64_t all_reduce_ps(const CostModel& cost, std::int64_t bytes) {
  return cost.collective(plan::Collective::kAllReduce, {"data", 2, 1}, bytes, 0, 2).duration_ps();
}

// 2 ranks on cables of 100 GB/s: 1 MB of 2·(1/2) MB each takes 10 us, and 2 steps of 2 us latency
// that no bandwidth shortens.
TEST(CostModel, ScaledBandwidthShortensTransfersAndNothingElse) {
  const auto cost = make(std::nullopt);
  ASSERT_TRUE(cost.has_value());
  const CostModel faster = cost->scaled({.bandwidth_ppm = 2'000'000});
  EXPECT_EQ(all_reduce_ps(*cost, 1'000'000), 14'000'000);
  EXPECT_EQ(all_reduce_ps(faster, 1'000'000), 9'000'000);
  EXPECT_EQ(all_reduce_ps(cost->scaled({.bandwidth_ppm = 2'000'000,
                                        .bandwidth_of = Carrier::kLinksOfKind,
                                        .link_kind = "ib"}),
                          1'000'000),
            14'000'000);
  EXPECT_EQ(all_reduce_ps(cost->scaled({.bandwidth_ppm = 2'000'000,
                                        .bandwidth_of = Carrier::kLinksOfKind,
                                        .link_kind = "nvlink"}),
                          1'000'000),
            9'000'000);
  EXPECT_EQ(all_reduce_ps(cost->scaled({.compute_ppm = 2'000'000}), 1'000'000), 14'000'000);
  EXPECT_NE(faster.fingerprint(), cost->fingerprint());
  EXPECT_EQ(cost->scaled({}).topology().link(topologies::LinkId(0)).bytes_per_second,
            100'000'000'000);
}

TEST(CostModel, ScaledBandwidthScalesMeasuredRates) {
  auto p = profile("T100-80GB");
  p.collectives.push_back({.op = model::Collective::kAllReduce,
                           .size = 2,
                           .bus_bandwidth = 50e9,
                           .latency_seconds = 1e-6});
  const auto cost = make(std::move(p));
  ASSERT_TRUE(cost.has_value());
  EXPECT_EQ(all_reduce_ps(*cost, 1'000'000), 22'000'000);
  EXPECT_EQ(all_reduce_ps(cost->scaled({.bandwidth_ppm = 2'000'000}), 1'000'000), 12'000'000);
  EXPECT_EQ(all_reduce_ps(cost->scaled({.bandwidth_ppm = 2'000'000,
                                        .bandwidth_of = Carrier::kLinksOfKind,
                                        .link_kind = "nvlink"}),
                          1'000'000),
            22'000'000);
  const CostModel inside =
      cost->scaled({.bandwidth_ppm = 2'000'000, .bandwidth_of = Carrier::kMeasuredInHosts});
  EXPECT_EQ(all_reduce_ps(inside, 1'000'000), 12'000'000);
  // The search prices sizes over paths found once: the same figure.
  const plan::Group pair{"data", 2, 1};
  EXPECT_EQ(
      tests::closed_ps(inside.communication(), plan::Collective::kAllReduce, pair, 1'000'000, 0, 2),
      12'000'000);
  EXPECT_EQ(all_reduce_ps(cost->scaled({.bandwidth_ppm = 2'000'000,
                                        .bandwidth_of = Carrier::kMeasuredAcrossHosts}),
                          1'000'000),
            22'000'000);
}

TEST(CostModel, ScaledComputeShortensEveryOperationOfADevice) {
  const auto cost = make(std::nullopt);
  ASSERT_TRUE(cost.has_value());
  model::SegmentShape shape;
  shape.kind = model::SegmentKind::kResidual;
  shape.sequences = 1;
  shape.tokens = 2048;
  shape.in = shape.out = 4096;
  const std::int64_t alone = cost->segment_ps(shape, model::Phase::kF);
  EXPECT_EQ(cost->scaled({.compute_ppm = 500'000}).segment_ps(shape, model::Phase::kF), 2 * alone);
  EXPECT_EQ(cost->scaled({.bandwidth_ppm = 500'000}).segment_ps(shape, model::Phase::kF), alone);
  EXPECT_EQ(cost->scaled({.compute_ppm = 500'000}).peak().raw(), 50e12);
}

TEST(CostModel, ProfileOfAnotherDeviceIsRefusedWithAHint) {
  const auto cost = make(profile("H100-SXM5-80GB"));
  ASSERT_FALSE(cost.has_value());
  EXPECT_EQ(cost.error().front().code, base::ErrorCode::kInconsistent);
  EXPECT_NE(cost.error().front().message.find("T100-80GB"), std::string::npos);
  EXPECT_FALSE(cost.error().front().hint.empty());
}

TEST(CostModel, AFamilyNameNamesItsDevices) {
  EXPECT_TRUE(make(profile("T100")).has_value());
  EXPECT_TRUE(make(profile("t100-80gb")).has_value());
  EXPECT_TRUE(make(profile("")).has_value());
  EXPECT_FALSE(make(profile("T10")).has_value());
}

TEST(CostModel, ImpossibleNumbersInAProfileAreRefused) {
  auto p = profile("T100");
  p.overlap_slowdown = 0.5;
  p.collectives.push_back({.op = plan::Collective::kAllReduce,
                           .size = 1,
                           .stride = 1,
                           .hosts = 1,
                           .bus_bandwidth = 1,
                           .latency_seconds = 0,
                           .points = {}});
  const auto cost = make(p);
  ASSERT_FALSE(cost.has_value());
  EXPECT_EQ(cost.error().size(), 2U);
}

TEST(CostModel, AStepsCommunicationSlowsLinksOfTheFabricAndWhatStaysInAHost) {
  auto p = profile("T100");
  p.step_communication = {.factor = 1.25, .issue_seconds = 0, .fabric_share = 0.5};
  const auto of = [&](const std::optional<model::Profile>& with, int devices, int hosts,
                      const plan::Group& group) {
    const auto cost =
        CostModel::make(*model::find_model("llama-2-7b"), machines::cluster(devices, hosts), with,
                        {model::Precision::kBFloat16, 2048});
    EXPECT_TRUE(cost.has_value());
    const Transfer t =
        cost->collective(plan::Collective::kAllReduce, group, 1 << 20, 0, devices * hosts);
    return static_cast<double>(t.wire_bytes) / static_cast<double>(t.bytes_per_second);
  };
  const double in_host = of(std::nullopt, 2, 1, {"data", 2, 1}),
               across = of(std::nullopt, 1, 2, {"data", 2, 1});
  EXPECT_DOUBLE_EQ(in_host, (1 << 20) / 100e9);
  EXPECT_DOUBLE_EQ(of(p, 2, 1, {"data", 2, 1}), 1.25 * in_host);
  EXPECT_DOUBLE_EQ(across, (1 << 20) / 10e9);
  EXPECT_DOUBLE_EQ(of(p, 1, 2, {"data", 2, 1}), 2 * across);
}

TEST(CostModel, FingerprintFollowsTheProfile) {
  auto slower = profile("T100");
  slower.overlap_slowdown = 1.5;
  EXPECT_EQ(make(profile("T100"))->fingerprint(), make(profile("T100"))->fingerprint());
  EXPECT_NE(make(profile("T100"))->fingerprint(), make(slower)->fingerprint());
}

TEST(Profiles, ShippedProfileIsListedAndFound) {
  const auto all = list_profiles();
  const auto shipped = std::ranges::find(all, "llama2-7b-a100-8gpu", &CatalogProfile::name);
  ASSERT_NE(shipped, all.end());
  EXPECT_NE(shipped->source.find("cea12ff"), std::string::npos);
  const auto found = find_profile("llama2-7b-a100-8gpu", *model::find_model("llama-2-7b"));
  ASSERT_TRUE(found.has_value()) << base::to_string(found.error());
  EXPECT_DOUBLE_EQ(found->overlap_slowdown, 1.125552573612729);
}

TEST(Profiles, ACatalogClusterGetsTheSurfaceOfItsDevice) {
  const auto model = *model::find_model("llama-2-7b");
  for (const auto& [cluster, name] :
       std::vector<std::pair<const char*, const char*>>{{"dgx-a100", "a100"},
                                                        {"dgx-a100-40g", "a100"},
                                                        {"dgx-h100", "h100"},
                                                        {"dgx-h200", "h200"},
                                                        {"rtx-titan-pcie", "rtx-titan"}}) {
    const auto topology = *topologies::catalog_topology(cluster);
    const auto found = device_profile(topology, model);
    ASSERT_TRUE(found.has_value()) << base::to_string(found.error());
    ASSERT_TRUE(found->has_value()) << cluster;
    EXPECT_EQ((*found)->name, name);
    const auto cost = CostModel::make(model, topology, *found, {model::Precision::kBFloat16, 2048});
    ASSERT_TRUE(cost.has_value()) << base::to_string(cost.error());
    EXPECT_EQ(cost->compute_origin(), Origin::kFitted);
    EXPECT_EQ(cost->communication_origin(), Origin::kDatasheet);
  }
}

TEST(Profiles, AttentionIsWrittenOutOnlyForModelsAndDevicesBeforeFlashAttention) {
  const auto attention = [](const char* cluster, const char* name) {
    return (*device_profile(*topologies::catalog_topology(cluster), *model::find_model(name)))
        ->framework->attention;
  };
  EXPECT_EQ(attention("dgx-a100", "gpt2-xl"), model::AttentionKernel::kExplicit);
  EXPECT_EQ(attention("dgx-a100", "llama-2-7b"), model::AttentionKernel::kFlash);
  EXPECT_EQ(attention("dgx-h100", "gpt2-xl"), model::AttentionKernel::kFlash);
}

TEST(CostModel, TheLibraryIsThatOfTheOldestDevice) {
  const auto library = [](const char* cluster) {
    return *usual_library(*topologies::catalog_topology(cluster));
  };
  EXPECT_EQ(library("dgx-h100")->name, "h100-measured");
  EXPECT_EQ(library("mixed-h100-a100")->name, "a100-measured");
  EXPECT_EQ(library("rtx-titan-pcie")->name, "volta");
  EXPECT_EQ((*usual_library(machines::cluster(2)))->name, "generic");
  const auto cost =
      CostModel::make(*model::find_model("llama-2-7b"), *topologies::catalog_topology("dgx-h100"),
                      std::nullopt, {.sequence = 2048, .library = library("dgx-h100")});
  ASSERT_TRUE(cost.has_value()) << base::to_string(cost.error());
  EXPECT_EQ(cost->communication_origin(), Origin::kFitted);
}

TEST(Profiles, SoftwareGoesByTheDevicesAgeUnlessItIsNamed) {
  const auto name = [](const char* cluster, const char* software) {
    return (*device_profile(*topologies::catalog_topology(cluster), *model::find_model("gpt2-xl"),
                            software))
        ->framework->name;
  };
  EXPECT_EQ(name("dgx-a100", ""), "Megatron-LM");
  EXPECT_EQ(name("dgx-h100", ""), "Megatron-Core");
  EXPECT_EQ(name("dgx-h100", "megatron-2021"), "Megatron-LM");
  EXPECT_EQ(name("dgx-a100", "pytorch-eager"), "PyTorch, eager");
  const auto none = device_profile(*topologies::catalog_topology("dgx-a100"),
                                   *model::find_model("gpt2-xl"), "pytorch-eagre");
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(base::to_string(none.error()).find("did you mean 'pytorch-eager'"), std::string::npos);
}

TEST(Profiles, SoftwareStatesWhatItHasUnlikeAnother) {
  const auto of = [](const std::string& software) {
    return **device_profile(*topologies::catalog_topology("dgx-h100"),
                            *model::find_model("gpt2-xl"), software);
  };
  const model::Profile core = of("megatron-core"), bridge = of("megatron-bridge");
  model::Framework changed = *core.framework;
  changed.loss_passes = 5;
  EXPECT_EQ(*bridge.framework, changed);
  EXPECT_EQ(bridge.step_communication, core.step_communication);
  EXPECT_EQ(bridge.spread, core.spread);
  const model::Profile fused = of("megatron-bridge-fused");  // like what is like what is like it
  EXPECT_EQ(fused.framework->kernel_seconds, 0);
  EXPECT_EQ(fused.framework->loss_passes, 5);
  EXPECT_EQ(fused.overlap_slowdown, of("megatron-bridge-ep-overlap").overlap_slowdown);
  const auto files = base::Catalog{"costmodel/profiles/software", ".json"}.names();
  EXPECT_EQ(list_software().size(), files.size());
}

// A GB200 of the same peak stands in, and the band is no narrower than by datasheet.
TEST(Profiles, ADeviceThatNobodyMeasuredTakesTheNearestSurface) {
  const auto model = *model::find_model("llama-2-7b");
  topologies::DeviceModel device =
      topologies::catalog_topology("gb300-nvl72")->device_models().front();
  device.name = "X1-288GB";
  device.power = base::Watts(1600);
  const auto topology = machines::cluster(2, 1, 100'000'000'000, 1, machines::core(), device);
  const auto found = *device_profile(topology, model);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->name, "gb200, the nearest to X1-288GB");
  EXPECT_GE(found->spread->products, model::kDatasheetSpread.products);
  // as large a share of 1,600 W as a GB200 takes of its 1,200
  const auto gb200 = *device_profile(*topologies::catalog_topology("gb200-nvl72"), model);
  const model::PowerSurface &own = gb200->surfaces[0].power, &power = found->surfaces[0].power;
  EXPECT_NEAR(power.joules_per_flop / 1600, own.joules_per_flop / (1200 - own.idle_watts), 1e-20);
  EXPECT_TRUE(CostModel::make(model, topology, found, {model::Precision::kBFloat16, 2048}));
}

TEST(Profiles, AMeasuredDeviceIsNoSoftware) {
  const auto path = base::data_file("costmodel/profiles/devices/a100.json");
  const auto found = device_profile(*topologies::catalog_topology("dgx-h100"),
                                    *model::find_model("gpt2-xl"), path->string());
  ASSERT_FALSE(found.has_value());
  EXPECT_NE(base::to_string(found.error()).find("measures a device"), std::string::npos);
}

TEST(Profiles, AMixedClusterTakesThatOfItsSlowestDevice) {
  const auto model = *model::find_model("llama-2-7b");
  const auto topology = *topologies::catalog_topology("mixed-h100-a100");
  const auto found = *device_profile(topology, model);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->name, "a100");
  EXPECT_TRUE(found->collectives.empty());
  EXPECT_TRUE(CostModel::make(model, topology, found, {model::Precision::kBFloat16, 2048}));
}

TEST(Profiles, ADeviceThatIsLikeNoneHasNoSurface) {
  auto file = topologies::TopologyBuilder("processor");
  auto device = machines::device();
  device.name = "P1";
  device.peak_bf16 = base::FlopsPerSecond(1e12);
  file.add_device("a", 0, file.add_model(device));
  const auto topology = std::move(file).build();
  ASSERT_TRUE(topology.has_value());
  const auto found = device_profile(*topology, *model::find_model("gpt2"));
  ASSERT_TRUE(found.has_value());
  EXPECT_FALSE(found->has_value());
}

TEST(Profiles, UnknownNameIsAnsweredWithANearOne) {
  const auto found = find_profile("llama2-7b-a100-8gpus", *model::find_model("llama-2-7b"));
  ASSERT_FALSE(found.has_value());
  EXPECT_NE(found.error().front().hint.find("llama2-7b-a100-8gpu"), std::string::npos);
}

TEST(Profiles, ShippedProfilePricesTheCatalogsA100Hosts) {
  const auto model = *model::find_model("llama-2-7b");
  for (const char* cluster : {"dgx-a100", "dgx-a100-40g"}) {
    const auto cost = CostModel::make(model, *topologies::catalog_topology(cluster),
                                      *find_profile("llama2-7b-a100-8gpu", model),
                                      {model::Precision::kBFloat16, 2048});
    ASSERT_TRUE(cost.has_value()) << base::to_string(cost.error());
    EXPECT_EQ(cost->compute_origin(), Origin::kMeasured);
    EXPECT_EQ(cost->collective(plan::Collective::kAllReduce,
                               {.name = "data", .size = 8, .stride = 1}, 1 << 30, 0, 8)
                  .rate_cap,
              154'203'000'000);
  }
}

TEST(CostModel, ContextHoldsTheFrameworkAndTheTablesOfRotaryAttention) {
  const auto bytes_of = [](const char* name, std::int64_t framework) {
    model::Profile profile;
    profile.name = "context";
    profile.context_bytes = framework;
    return CostModel::make(model::find_model(name).value(),
                           topologies::catalog_topology("dgx-a100").value(), profile,
                           {.precision = model::Precision::kBFloat16, .sequence = 512})
        ->context_bytes();
  };
  // cosine and sine, 64 angles each, fp32
  EXPECT_EQ(bytes_of("llama-2-7b", 1000), 1000 + 4 * 512 * 128);
  EXPECT_EQ(bytes_of("gpt2", 1000), 1000);
}

TEST(CostModel, WhatAnAllocatorReservesIsAShareOfThePeakAndFitsWhatIsUsable) {
  model::Profile profile;
  profile.name = "reserved";
  profile.context_bytes = 1000;
  profile.framework = model::Framework{.name = "f", .reserved_share = 1.25};
  const auto cost = CostModel::make(model::find_model("gpt2").value(), machines::cluster(2),
                                    profile, {.sequence = 512});
  ASSERT_TRUE(cost.has_value()) << base::to_string(cost.error());
  EXPECT_EQ(cost->reserved_bytes(400), 1500);
  EXPECT_EQ(cost->reserved_bytes(401), 1502);  // 501.25, rounded up
  EXPECT_EQ(cost->usable_bytes(999), -1);
  for (std::int64_t memory = 1000; memory < 1100; ++memory) {
    const std::int64_t usable = cost->usable_bytes(memory);
    EXPECT_LE(cost->reserved_bytes(usable), memory);
    EXPECT_GT(cost->reserved_bytes(usable + 1), memory);
  }
}

}  // namespace
}  // namespace orrery::costmodel
