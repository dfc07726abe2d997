// Machines with several kinds of device: prices, memory and closed forms by what a stage lies on.
#include <gtest/gtest.h>

#include "base/json.h"
#include "base/numbers.h"
#include "costmodel/closed_form/closed_form.h"
#include "costmodel/memory_limit.h"
#include "costmodel/profiles/profiles.h"
#include "plan/lowering/lower.h"
#include "sim/cells/rank_cells.h"
#include "sim/simulate.h"
#include "tests/unit/search/mixed_fixture.h"
#include "topologies/device_order.h"

namespace orrery::costmodel {
namespace {

using search::mixed_cluster;
using search::mixed_cost;

constexpr std::int64_t kMiB = 1 << 20, kGiB = 1 << 30;
constexpr DeviceKinds kFast = 1, kSlow = 2;

model::SegmentShape product() {
  model::SegmentShape s;
  s.kind = model::SegmentKind::kMlpIn;
  s.dtype = model::DType::kBFloat16;
  s.sequences = 1;
  s.tokens = 4096;
  s.in = s.out = 4096;
  return s;
}

/// Two stages of two devices; layers of the first, of the second.
plan::Plan two_stages(int first, int second) {
  plan::Plan p;
  p.model = "tiny";
  p.model_fingerprint = search::tiny_model(first + second).fingerprint();
  p.precision = model::Precision::kBFloat16;
  p.sequence = 128;
  p.global_batch = p.micro_batches = 4;
  p.vocabulary = {.tp = 2};
  p.hosts = 2;
  for (const int layers : {first, second}) p.stages.push_back({.runs = {{layers, {.tp = 2}}}});
  return p;
}

TEST(MixedDevices, AStageIsOfTheKindsOfItsRanks) {
  const CostModel cost = mixed_cost(mixed_cluster(2, 1, 2, 4, kGiB), 2);
  EXPECT_TRUE(cost.mixed());
  EXPECT_EQ(cost.kinds_of(0, 4), kFast);
  EXPECT_EQ(cost.kinds_of(4, 2), kSlow);
  EXPECT_EQ(cost.kinds_of(3, 2), kFast | kSlow);
  EXPECT_EQ(cost.kinds_of(5, 1), kSlow);
  EXPECT_EQ(cost.kinds_of(0, 0), 0u);
}

// 2 · 4096³ FLOPs at 80 % of 100 TFLOP/s and of a quarter of it, and 1 us.
TEST(MixedDevices, EveryKindHasItsOwnPricesAndASpanTheSlowest) {
  const CostModel cost = mixed_cost(mixed_cluster(1, 1, 2, 4, kGiB), 2);
  const std::int64_t fast = cost.segment_ps(product(), model::Phase::kF, kFast),
                     slow = cost.segment_ps(product(), model::Phase::kF, kSlow);
  EXPECT_NEAR(static_cast<double>(fast), 1e12 * (2.0 * 4096 * 4096 * 4096 / 80e12 + 1e-6), 2);
  EXPECT_NEAR(static_cast<double>(slow), 1e12 * (2.0 * 4096 * 4096 * 4096 / 20e12 + 1e-6), 2);
  EXPECT_EQ(cost.segment_ps(product(), model::Phase::kF, kFast | kSlow), slow);
  EXPECT_EQ(cost.segment_ps(product(), model::Phase::kF), slow);
  EXPECT_EQ(cost.segment_ps(product(), model::Phase::kF, 0), fast);
}

TEST(MixedDevices, ATypeOfHostThatIsListedTwiceIsOneKind) {
  topologies::TopologyBuilder b("twice");
  const topologies::DeviceModel model = search::tiny_cluster(1).device_models().front();
  const std::uint32_t models[] = {b.add_model(model), b.add_model(model)};
  for (std::uint32_t kind = 0; kind < 2; ++kind) {
    const auto hub = b.add_vertex(topologies::VertexKind::kSwitch, "switch", kind);
    b.add_duplex(b.add_device("gpu", kind, models[kind]), hub, 1'000'000'000, base::Seconds(1e-6),
                 "nvlink");
    b.add_duplex(b.add_vertex(topologies::VertexKind::kNic, "nic", kind), hub, 1'000'000'000,
                 base::Seconds(1e-6), "pcie");
  }
  const std::uint32_t counts[] = {1, 1};
  const CostModel cost = mixed_cost(*std::move(b).build_cluster(counts, search::core()), 2);
  EXPECT_EQ(cost.kinds_of(0, 2), kFast);
  EXPECT_EQ(cost.kind_end(0), 2);
}

TEST(MixedDevices, PeakIsTheMeanOfTheRanks) {
  const CostModel cost = mixed_cost(mixed_cluster(1, 1, 2, 4, kGiB), 2);
  EXPECT_EQ(cost.peak(2).raw(), 100e12);
  EXPECT_EQ(cost.peak().raw(), 62.5e12);
}

TEST(MixedDevices, EqualKindsPriceToTheSameBytesAsOne) {
  const topologies::Topology mixed = mixed_cluster(1, 1, 2, 1, kGiB);
  const CostModel two = mixed_cost(mixed, 4);
  ASSERT_TRUE(two.mixed());
  for (const int first : {1, 2, 3}) {
    const plan::Plan plan = two_stages(first, 4 - first);
    const auto priced = plan_cost(two, plan);
    const CostModel all_slow =
        mixed_cost(*topologies::in_device_order(mixed, topologies::DeviceOrder{"slow", "fast"}), 4);
    const auto other = plan_cost(all_slow, plan);
    ASSERT_TRUE(priced.has_value()) << base::to_string(priced.error());
    ASSERT_TRUE(other.has_value()) << base::to_string(other.error());
    EXPECT_EQ(priced->step_ps, other->step_ps);
    EXPECT_EQ(priced->stage_ps, other->stage_ps);
    EXPECT_EQ(priced->stage_peak_bytes, other->stage_peak_bytes);
    const plan::Program program = *plan::lower(plan, two.model());
    EXPECT_EQ(base::to_text(sim::to_json(*sim::simulate(program, two))),
              base::to_text(sim::to_json(*sim::simulate(program, all_slow))));
  }
}

// Layers on the slow stage take longer, those on the fast one as long as on a machine all fast.
TEST(MixedDevices, StagesTakeWhatTheirDevicesTake) {
  const CostModel even = mixed_cost(mixed_cluster(1, 1, 2, 1, kGiB), 4),
                  cost = mixed_cost(mixed_cluster(1, 1, 2, 4, kGiB), 4);
  const PlanCost same = plan_cost(even, two_stages(2, 2)).value(),
                 apart = plan_cost(cost, two_stages(2, 2)).value();
  EXPECT_EQ(apart.stage_ps[0], same.stage_ps[0]);
  EXPECT_GT(apart.stage_ps[1], same.stage_ps[1]);
  const PlanCost moved = plan_cost(cost, two_stages(3, 1)).value();
  EXPECT_LT(moved.stage_ps[1], apart.stage_ps[1]);
  EXPECT_LT(moved.step_ps, apart.step_ps);
}

TEST(MixedDevices, TheSimulatorAgreesWithTheClosedForm) {
  const CostModel cost = mixed_cost(mixed_cluster(1, 1, 2, 4, kGiB), 4);
  for (const int first : {1, 2, 3}) {
    const plan::Plan plan = two_stages(first, 4 - first);
    const auto report = *sim::simulate(*plan::lower(plan, cost.model()), cost);
    const PlanCost priced = plan_cost(cost, plan).value();
    EXPECT_NEAR(static_cast<double>(report.step_time_ps) / 1e6,
                static_cast<double>(priced.pass_by_pass_ps) / 1e6,
                static_cast<double>(priced.pass_by_pass_ps) / 1e8);
  }
}

/// One stage of replicas, each of a tensor group.
plan::Plan replicas(int tp) {
  plan::Plan p = two_stages(2, 2);
  p.global_batch = 8;
  p.stages = {
      {.runs = {{4, {.tp = tp, .dp = 4 / tp, .zero = 0, .grad_reduce = plan::GradReduce::kEnd}}}}};
  p.vocabulary = p.stages[0].runs[0].strategy;
  return p;
}

sim::StageReport simulated(const topologies::Topology& topology, const plan::Plan& plan) {
  const CostModel cost = mixed_cost(topology, 4);
  const auto program = plan::lower(plan, cost.model());
  if (!program) {
    ADD_FAILURE() << base::to_string(program.error());
    return {};
  }
  const auto report = *sim::simulate(*program, cost);
  const auto closed = static_cast<double>(plan_cost(cost, plan).value().pass_by_pass_ps);
  EXPECT_NEAR(static_cast<double>(report.step_time_ps), closed, closed / 1e3);
  return report.stages[0];
}

// Hosts that compute fast over slow links, and hosts that compute slowly over fast ones.
TEST(MixedDevices, ReplicasDoNotTakeTheSlowProductsOfOneAndTheSlowLinksOfAnother) {
  constexpr double kSlowness = 16;
  constexpr std::int64_t kSlowLinks = 20'000'000, kFastLinks = 20'000'000'000;
  const plan::Plan plan = replicas(2);
  const auto all_fast = simulated(mixed_cluster(1, 1, 2, 1, kGiB, kSlowLinks), plan);
  for (const std::int64_t links : {kSlowLinks, kFastLinks}) {
    const auto mixed = simulated(mixed_cluster(1, 1, 2, kSlowness, kGiB, links), plan);
    const auto together = simulated(mixed_cluster(1, 1, 2, kSlowness, kGiB, links), replicas(4));
    const std::int64_t blocks = mixed.busy_compute_ps - mixed.optimizer_ps,
                       fast = all_fast.busy_compute_ps - all_fast.optimizer_ps;
    if (links == kSlowLinks) {
      EXPECT_EQ(mixed.exposed_tensor_ps, all_fast.exposed_tensor_ps);
      EXPECT_LT(real(blocks), 1.1 * real(fast));  // some templates have no collective
    } else {
      EXPECT_LT(mixed.exposed_tensor_ps, all_fast.exposed_tensor_ps / 10);
      EXPECT_GT(blocks, 2 * fast);
    }
    EXPECT_GT(mixed.optimizer_ps, 2 * all_fast.optimizer_ps);  // no link has a part in it
    // a group over both kinds takes the slow products, whatever the links
    EXPECT_GT(together.busy_compute_ps - together.optimizer_ps, 2 * fast);
  }
}

// Two hosts of each kind behind uplinks of one, two and one: a tensor group of each kind crosses
// the one in the middle, which is half as wide for both as for one.
TEST(MixedDevices, GroupsOfOtherPartsShareTheLinks) {
  constexpr std::int64_t kUplink = 100'000'000;
  const auto on = [&](double slowness, std::int64_t middle) {
    topologies::FabricSpec tree = search::core();
    tree.shape = topologies::FabricShape::kTree;
    tree.tree = {
        {"first", 3, 1, kUplink}, {"middle", 3, 2, middle}, {"last", 3, 1, kUplink}, {"root"}};
    plan::Plan plan = replicas(4);
    plan.hosts = 4;
    plan.stages[0].runs[0].strategy.dp = plan.vocabulary.dp = 2;
    return simulated(mixed_cluster(2, 2, 2, slowness, kGiB, 20'000'000'000, tree), plan);
  };
  // a name alone makes two kinds of devices that are equal
  const auto equal = on(1, kUplink), apart = on(1, 2 * kUplink), slow = on(16, kUplink);
  EXPECT_NEAR(real(equal.exposed_tensor_ps), 2 * real(apart.exposed_tensor_ps),
              0.1 * real(equal.exposed_tensor_ps));
  EXPECT_GE(slow.exposed_tensor_ps, equal.exposed_tensor_ps);
  EXPECT_GT(slow.busy_compute_ps, equal.busy_compute_ps);
}

// Rank by rank every device computes at its own pace: no more than all at the slowest part's.
TEST(MixedDevices, RanksByThemselvesAgreeWithTheirStage) {
  constexpr double kSlowness = 16;
  for (const std::int64_t links : {std::int64_t{20'000'000}, std::int64_t{20'000'000'000}}) {
    for (const int tp : {2, 4}) {
      const CostModel cost = mixed_cost(mixed_cluster(1, 1, 2, kSlowness, kGiB, links), 4);
      const plan::Program program = *plan::lower(replicas(tp), cost.model());
      const auto stage = static_cast<double>(sim::simulate(program, cost)->step_time_ps);
      for (const bool fold : {true, false}) {
        const auto ranks = sim::simulate_ranks(program, cost, {.fold = fold});
        ASSERT_TRUE(ranks.has_value()) << base::to_string(ranks.error());
        EXPECT_LE(static_cast<double>(ranks->step_ps), 1.0001 * stage);
        EXPECT_GE(static_cast<double>(ranks->step_ps), 0.9 * stage);
      }
    }
  }
}

TEST(MixedDevices, AnOrderOfDevicesMustBeThatOfTheRanks) {
  const CostModel cost = mixed_cost(mixed_cluster(1, 1, 2, 4, kGiB), 4);
  plan::Plan plan = two_stages(1, 3);
  plan.device_order = {"slow", "fast"};
  const auto refused = plan_cost(cost, plan);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(base::to_string(refused.error()).find("count fast, slow"), std::string::npos);
  const auto ordered = cost.in_order(plan.device_order);
  ASSERT_TRUE(ordered.has_value());
  EXPECT_EQ(ordered->kinds_of(0, 2), kSlow);
  EXPECT_TRUE(plan_cost(*ordered, plan).has_value());
}

TEST(MixedDevices, MemoryIsTheLeastOfAStage) {
  const CostModel cost = mixed_cost(mixed_cluster(1, 1, 2, 4, 512 * kMiB), 4);
  const MemoryLimit own(cost, 0);
  EXPECT_FALSE(own.same());
  EXPECT_EQ(own.of(cost, 0, 2), kGiB);
  EXPECT_EQ(own.of(cost, 2, 2), 512 * kMiB);
  EXPECT_EQ(own.of(cost, 0, 4), 512 * kMiB);
  EXPECT_EQ(own.least(), 512 * kMiB);
  const MemoryLimit stated(cost, 100);
  EXPECT_TRUE(stated.same());
  EXPECT_EQ(stated.of(cost, 0, 2), 100);
  EXPECT_TRUE(MemoryLimit(mixed_cost(mixed_cluster(1, 1, 2, 4, kGiB), 4), 0).same());
}

TEST(MixedDevices, EveryKindHasTheSurfaceThatShipsForIt) {
  const auto model = *model::find_model("llama-2-7b");
  const auto topology = *topologies::catalog_topology("mixed-h100-a100");
  const auto found = *device_profile(topology, model, "megatron-core");
  ASSERT_TRUE(found.has_value());
  ASSERT_EQ(found->kinds.size(), 2u);
  EXPECT_EQ(found->kinds[0].name, "h100");
  EXPECT_EQ(found->kinds[1].name, "a100");
  EXPECT_EQ(found->kinds[0].framework->name, found->framework->name);
  const CostModel mixed = *CostModel::make(model, topology, found, {.sequence = 2048});
  for (const auto& [cluster, kind] : {std::pair("dgx-h100", kFast), std::pair("dgx-a100", kSlow)}) {
    const auto one = *topologies::catalog_topology(cluster, 32);
    const CostModel alone = *CostModel::make(
        model, one, *device_profile(one, model, "megatron-core"), {.sequence = 2048});
    EXPECT_EQ(mixed.segment_ps(product(), model::Phase::kF, kind),
              alone.segment_ps(product(), model::Phase::kF));
  }
}

}  // namespace
}  // namespace orrery::costmodel
