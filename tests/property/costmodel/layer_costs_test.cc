/// Layers priced once and for any micro-batch against layers lowered anew; paths found once against
/// whole transfers.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "costmodel/closed_form/layer_costs.h"
#include "costmodel/closed_form/rank_windows.h"
#include "tests/property/costmodel/fresh_layer_cost.h"
#include "tests/property/plan/random_plan.h"
#include "tests/support/operation_time.h"
#include "tests/unit/costmodel/machines.h"
#include "tests/unit/costmodel/tunings.h"

namespace orrery::costmodel {
namespace {

CostModel cost_of(const model::ModelSpec& model, const plan::Plan& plan, bool overlaps) {
  model::Profile p;
  p.name = "test";
  p.device = "T100";
  p.overlaps = overlaps;
  p.overlap_slowdown = 1.25;
  auto made =
      CostModel::make(model, machines::with_processor(16), p, {plan.precision, plan.sequence});
  RC_ASSERT(made.has_value());
  return *std::move(made);
}

RC_GTEST_PROP(LayerCosts, EqualALoweringOfTheirOwn,
              (std::uint64_t seed, bool overlaps, bool experts, bool split, bool offloads)) {
  auto drawn = experts ? plan::random_expert_plan(seed, 4) : plan::random_plan(seed, 4);
  if (offloads) drawn = plan::with_offload(std::move(drawn), seed);
  const auto& [model, plan] = drawn;
  const CostModel cost = cost_of(model, plan, overlaps);
  LayerCosts costs(cost);
  const int devices = plan.devices_per_stage();
  const auto fresh = [&](const plan::LayerTemplates& t) {
    return fresh::layer_cost(cost, t, 0, devices);
  };
  plan::LayerContext context{.precision = plan.precision,
                             .sequence = plan.sequence,
                             .micro_batch_sequences = plan.micro_batch_sequences(),
                             .micro_batches = plan.micro_batches,
                             .global_batch = plan.global_batch,
                             .stages = plan.pipeline_degree(),
                             .prefetch_depth = plan.prefetch_depth,
                             .split_backward = split};
  // Sizes and numbers of micro-batches one after another, so that what was lowered for one serves
  // the next.
  for (const std::int64_t factor : {1, 3, 2}) {
    context.micro_batch_sequences = plan.micro_batch_sequences() * factor;
    context.micro_batches = factor == 3 ? 1 : plan.micro_batches;
    plan::LayerStrategy before = plan.vocabulary;
    for (const auto& stage : plan.stages) {
      for (const auto& run : stage.runs) {
        const LayerCost block = costs.block(run.strategy, context, 0, devices);
        RC_ASSERT(block == fresh(plan::lower_block(model, run.strategy, context)));
        const LayerCosts::Floor floor = costs.block_floor(run.strategy, context, 0, devices);
        RC_ASSERT(floor.passes_ps <= block.forward_ps + block.backward_ps);
        RC_ASSERT(floor.weight_ps <= block.weight_ps);
        if (!before.same_layout(run.strategy)) {
          RC_ASSERT(costs.reshard(before, run.strategy, context, 0, devices) ==
                    fresh(plan::lower_reshard(model, before, run.strategy, context)));
        }
        before = run.strategy;
      }
    }
    RC_ASSERT(costs.embedding(plan.vocabulary, context, 0, devices) ==
              fresh(plan::lower_embedding(model, plan.vocabulary, context)));
    RC_ASSERT(costs.head(plan.vocabulary, context, 0, devices) ==
              fresh(plan::lower_head(model, plan.vocabulary, context)));
  }
}

RC_GTEST_PROP(PathSummaries, PriceAsWholeTransfersDo, ()) {
  const int hosts = *rc::gen::element(1, 2, 4, 6, 8, 16), kind = *rc::gen::inRange(0, 8);
  const auto known = topologies::catalog_topology(
      *rc::gen::element<std::string>("dgx-a100", "dgx-h100", "rtx-titan-pcie", "h100-fat-tree",
                                     "h100-rail-optimised"),
      static_cast<std::uint32_t>(hosts));
  RC_ASSERT(known.has_value());
  const auto topology =
      kind < 4 ? machines::cluster(8, hosts, 100'000'000'000, 2, machines::fabric(kind)) : *known;
  const int devices = 8 * hosts;
  const CollectivePrices prices(topology, {}, {}, {}, {},
                                *rc::gen::arbitrary<bool>() ? tunings::library() : nullptr);
  const auto power = [](int low, int high) {  // of two, from `low` to `high`
    int bits = 0;
    while (low << (bits + 1) <= high) ++bits;
    return low << *rc::gen::inRange(0, bits + 1);
  };
  const int stage = power(2, devices), size = power(2, stage), stride = power(1, stage / size);
  const int first = stage * *rc::gen::inRange(0, devices / stage);
  const plan::Group group{"g", size, stride};
  const std::int64_t bytes = *rc::gen::inRange<std::int64_t>(0, 1 << 28);
  for (const auto op :
       {plan::Collective::kAllReduce, plan::Collective::kAllGather, plan::Collective::kAllToAll,
        plan::Collective::kBroadcast, plan::Collective::kPointToPoint}) {
    RC_ASSERT(
        tests::closed_ps(prices, op, group, bytes, first, stage) ==
        prices.collective(op, group, bytes, first, stage, Senders::kWholeGroups).duration_ps());
  }
  if (first + 2 * stage > devices && first < stage) return;  // nobody to send to
  const int offset = first + 2 * stage <= devices ? stage : -stage;
  RC_ASSERT(prices.exchange_ps(offset, bytes, prices.paths().summary(first, stage, offset)) ==
            prices.exchange(first, stage, offset, bytes).duration_ps());
}

// Links of other rates by level: as on a machine that has them.
RC_GTEST_PROP(PathSummaries, PriceLinksOfOtherRatesAsTheirMachineWould, ()) {
  const int hosts = *rc::gen::element(1, 2, 4);
  const auto topology = topologies::catalog_topology(
      *rc::gen::element<std::string>("dgx-a100", "h100-fat-tree", "rtx-titan-pcie"),
      static_cast<std::uint32_t>(hosts));
  RC_ASSERT(topology.has_value());
  const std::int64_t in_hosts = *rc::gen::inRange<std::int64_t>(300'000, 3'000'000),
                     fabric = *rc::gen::inRange<std::int64_t>(300'000, 3'000'000);
  const topologies::Topology machine = topology->with_level_rates(in_hosts, fabric);
  const auto library = *rc::gen::arbitrary<bool>() ? tunings::library() : nullptr;
  const CollectivePrices there(machine, {}, {}, {}, {}, library),
      here(*topology, {}, {}, {}, {.host_links_ppm = in_hosts, .fabric_links_ppm = fabric},
           library);
  const int devices = 8 * hosts, size = 1 << *rc::gen::inRange(1, hosts + 2),
            stride = *rc::gen::element(1, devices / size);
  const plan::Group group{"g", size, stride};
  const std::int64_t bytes = *rc::gen::inRange<std::int64_t>(0, 1 << 28);
  for (const auto op : {plan::Collective::kAllReduce, plan::Collective::kAllToAll}) {
    const std::int64_t ps = there.collective(op, group, bytes, 0, devices).duration_ps();
    RC_ASSERT(here.collective(op, group, bytes, 0, devices).duration_ps() == ps);
    RC_ASSERT(tests::closed_ps(here, op, group, bytes, 0, devices) ==
              tests::closed_ps(there, op, group, bytes, 0, devices));
  }
  if (hosts == 1) return;
  RC_ASSERT(here.exchange_ps(8, bytes, here.paths().summary(0, 8, 8)) ==
            there.exchange_ps(8, bytes, there.paths().summary(0, 8, 8)));
}

// Hosts that groups do not tile: one period of both speaks for a stage of several.
RC_GTEST_PROP(PathSummaries, OnePeriodUnderASwitchSpeaksForAllGroups, ()) {
  const int host = *rc::gen::element(3, 5, 6, 7, 12), stride = *rc::gen::element(1, 2),
            size = *rc::gen::element(2, 4, 8), span = size * stride, period = std::lcm(span, host);
  const int fewest = (period + 2 * host + span - 1) / span,  // groups' spans of a stage
      stage = span * *rc::gen::inRange(fewest, 2 * fewest + 1);
  const int first = stage * *rc::gen::inRange(0, 3), hosts = (first + stage + host - 1) / host;
  const topologies::Topology topology =
      machines::cluster(host, hosts, 100'000'000'000, *rc::gen::element(1, host));
  const CollectivePrices prices(topology, {}, {}, {}, {},
                                *rc::gen::arbitrary<bool>() ? tunings::library() : nullptr);
  const plan::Group group{"g", size, stride};
  RC_ASSERT(period_of(topology, group, first, stage) == period);
  const std::int64_t bytes = *rc::gen::inRange<std::int64_t>(0, 1 << 28);
  for (const auto op : {plan::Collective::kAllReduce, plan::Collective::kAllGather,
                        plan::Collective::kAllToAll, plan::Collective::kBroadcast}) {
    RC_ASSERT(tests::closed_ps(prices, op, group, bytes, first, stage) ==
              tests::closed_ps(prices, op, group, bytes, 0, period));
  }
}

RC_GTEST_PROP(RankWindows, WindowsFoundAlikeCostTheSame, ()) {
  const int hosts = *rc::gen::element(1, 3);
  auto topology = topologies::catalog_topology(
      *rc::gen::element<std::string>("dgx-a100", "dgx-h100", "rtx-titan-pcie"),
      static_cast<std::uint32_t>(hosts));
  RC_ASSERT(topology.has_value());
  const CollectivePrices prices(*topology, {});
  RankWindows windows(*topology);
  const int count = *rc::gen::element(1, 2, 4, 8, 12), devices = 8 * hosts;
  if (count > devices) return;
  const int first = *rc::gen::inRange(0, devices - count + 1),
            alike = windows.canonical(first, count);
  RC_ASSERT(alike <= first);
  RC_ASSERT(windows.canonical(alike, count) == alike);
  const int size = *rc::gen::inRange(1, count + 1);
  if (count % size != 0) return;
  const plan::Group group{"g", size, *rc::gen::element(1, count / size)};
  const std::int64_t bytes = *rc::gen::inRange<std::int64_t>(0, 1 << 28);
  for (const auto op :
       {plan::Collective::kAllReduce, plan::Collective::kAllToAll, plan::Collective::kBroadcast}) {
    RC_ASSERT(
        prices.collective(op, group, bytes, first, count, Senders::kWholeGroups).duration_ps() ==
        prices.collective(op, group, bytes, alike, count, Senders::kWholeGroups).duration_ps());
  }
}

}  // namespace
}  // namespace orrery::costmodel
