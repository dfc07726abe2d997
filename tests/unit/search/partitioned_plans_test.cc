// Layers partitioned in space and time, in the search for whole plans.
#include <gtest/gtest.h>

#include <algorithm>

#include "search/loop/planner.h"
#include "search/partition/partition_search.h"
#include "search/proof/partition_bound.h"
#include "search/space/space_text.h"
#include "tests/unit/search/checked_answer.h"
#include "tests/unit/search/tiny_fixture.h"

namespace orrery::search {
namespace {

costmodel::CostModel cost_of(const char* model, const char* cluster, std::uint32_t hosts = 1) {
  return costmodel::CostModel::make(
             model::find_model(model).value(), topologies::catalog_topology(cluster, hosts).value(),
             std::nullopt,
             {.precision = model::Precision::kFloat32, .sequence = 512, .library = {}})
      .value();
}

// The search looks at every sequence, the checker at every way to share the bits out.
TEST(LeastCompute, IsTheSameByTheSearchAndByTheChecker) {
  for (const char* model : {"llama-2-7b", "gpt2-xl", "llama-2-70b"}) {
    const costmodel::CostModel cost = cost_of(model, "dgx-a100");
    for (const int bits : {1, 2, 3}) {
      for (const std::int64_t sequences : {1, 8}) {
        const auto found = PartitionSearch::least_compute_ps(cost, {.bits = bits,
                                                                    .sequences = sequences,
                                                                    .tokens = 512,
                                                                    .skews = 1,
                                                                    .fused_attention = true});
        EXPECT_EQ(least_layer_compute_ps(cost, bits, sequences), found.value())
            << model << ' ' << bits << ' ' << sequences;
      }
    }
  }
}

TEST(LeastCompute, IsNoneWhereALayerCannotBePartitioned) {
  EXPECT_FALSE(least_layer_compute_ps(cost_of("mixtral-8x7b", "dgx-a100"), 2, 8));
}

PlanAnswer answer_of(const costmodel::CostModel& cost, const char* space,
                     std::int64_t memory_bytes = 0) {
  PlanRequest request;
  request.cluster = cost.topology().name();
  request.global_batch = 16;
  request.memory_bytes = memory_bytes;
  request.space = restrict_to_dimensions(space, Space{}).value();
  return find_plan(cost, request).value();
}

TEST(PartitionedPlans, WinWhereTensorParallelismIsAllThereIs) {
  const costmodel::CostModel cost = cost_of("llama-2-7b", "rtx-titan-pcie", 2);
  const PlanAnswer without = answer_of(cost, "tp,sp"),
                   with = answer_of(cost, "tp,sp,spatial-temporal");
  const Candidate& best = with.candidates.front();
  ASSERT_TRUE(plan::is_partitioned(best.plan));
  EXPECT_LT(best.report.step_time_ps, without.candidates.front().report.step_time_ps);
  // The certificate still speaks of the plans without, and of these by what they compute.
  EXPECT_EQ(with.certificate.cost_ps, without.certificate.cost_ps);
  EXPECT_FALSE(without.certificate.partition_bound_ps);
  EXPECT_EQ(with.certificate.partition_bound_ps,
            partition_bound_ps(cost, with.certificate.proofs.front().space, 16));
  EXPECT_LE(*with.certificate.partition_bound_ps, best.closed_form_ps);
  EXPECT_EQ(checkers_fault(cost, with), "");
  // What is stated of memory is what the Program holds.
  const auto report = check_plan(cost, best.plan, {.cost_ps = best.closed_form_ps});
  EXPECT_TRUE(report->holds()) << report->faults.front();
}

TEST(PartitionedPlans, AreRefusedByTheCheckerWhereTheirBoundIsAboveWhatTheyCompute) {
  const costmodel::CostModel cost = cost_of("gpt2-xl", "dgx-a100");
  PlanAnswer answer = answer_of(cost, "dp,tp,spatial-temporal");
  ASSERT_EQ(checkers_fault(cost, answer), "");
  ++*answer.certificate.partition_bound_ps;
  const std::string fault = checkers_fault(cost, answer);
  EXPECT_NE(fault.find("partitioned layers compute"), std::string::npos) << fault;
}

TEST(PartitionedPlans, ShardStatesAndRunAgainWhereMemoryAsksForIt) {
  const costmodel::CostModel cost = cost_of("llama-2-7b", "dgx-a100");
  const auto answer = [&](const char* space, std::int64_t gib) {
    PlanAnswer found = answer_of(cost, space, gib << 30);
    EXPECT_EQ(checkers_fault(cost, found), "");
    return found;
  };
  const auto strategy_of = [](const PlanAnswer& found) {
    const plan::LayerRun& run = found.candidates.front().plan.stages.front().runs.front();
    EXPECT_FALSE(run.partition.empty());
    return run.strategy;
  };
  const PlanAnswer plain = answer("tp,spatial-temporal", 24),
                   sharded = answer("tp,zero1,spatial-temporal", 24);
  EXPECT_EQ(strategy_of(plain).zero, 0);
  EXPECT_EQ(strategy_of(sharded).zero, 1);
  EXPECT_LT(sharded.candidates.front().report.step_time_ps,
            plain.candidates.front().report.step_time_ps);
  EXPECT_TRUE(answer("tp,zero1,spatial-temporal", 13).candidates.empty());
  EXPECT_EQ(strategy_of(answer("tp,zero1,recompute,spatial-temporal", 13)).recompute,
            plan::Recompute::kFull);
}

TEST(PartitionedPlans, HaveNoDegreesToFix) {
  Space space{.spatial_temporal = true};
  EXPECT_TRUE(allows_partitions(space));
  space.fix_tp = 2;
  EXPECT_FALSE(allows_partitions(space));
}

}  // namespace
}  // namespace orrery::search
