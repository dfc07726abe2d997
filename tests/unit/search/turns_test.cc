// Blocks of several kinds that take turns through the depth of a model.
#include <gtest/gtest.h>

#include "search/loop/planner.h"
#include "topologies/topology.h"

namespace orrery::search {
namespace {

TEST(TurnsOfKinds, ExpertsAreSharedByTheBlocksThatHaveThem) {
  const auto model = model::find_model("nemotron-3-nano-30b-a3b");
  const auto topology = topologies::catalog_topology("dgx-h100", 2);
  ASSERT_TRUE(model.has_value() && topology.has_value());
  const auto cost = costmodel::CostModel::make(
      *model, *topology, std::nullopt,
      {.precision = model::Precision::kBFloat16, .sequence = 4096, .library = {}});
  ASSERT_TRUE(cost.has_value());
  PlanRequest request;
  request.cluster = "dgx-h100";
  request.hosts = 2;
  request.global_batch = 64;
  request.top = 1;
  request.space.fix_ep = 8;
  const auto answer = find_plan(*cost, request);
  ASSERT_TRUE(answer.has_value()) << base::to_string(answer.error());
  ASSERT_FALSE(answer->candidates.empty());
  std::int64_t layer = 0;
  for (const plan::Stage& stage : answer->candidates.front().plan.stages) {
    for (const plan::LayerRun& run : stage.runs) {
      for (int i = 0; i < run.count; ++i, ++layer)
        EXPECT_EQ(run.strategy.ep, model->of_kind(model->kind_of(layer)).experts > 0 ? 8 : 1);
    }
  }
  EXPECT_EQ(layer, model->layers);
}

}  // namespace
}  // namespace orrery::search
