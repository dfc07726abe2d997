// The form of memory that steers the search against the exact bytes that decide: never above them,
// whatever the layers.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "search/costs/stage_model.h"
#include "search/programs/layer_order.h"
#include "tests/unit/search/tiny_fixture.h"

namespace orrery::search {
namespace {

RC_GTEST_PROP(MemoryForm, NeverExceedsTheStaticPeak, ()) {
  const int devices = *rc::gen::element(1, 2, 4), layers = *rc::gen::inRange(1, 6);
  const costmodel::CostModel cost = tiny_cost(devices, layers);
  Space space;
  space.ring = space.ulysses = space.strided = *rc::gen::arbitrary<bool>();
  space.operators = space.slices = *rc::gen::arbitrary<bool>();
  constexpr std::int64_t kBatch = 8, kMemory = std::int64_t{1} << 40;
  costmodel::LayerCosts costs(cost);
  StageModel model(costs, space, kBatch, kMemory);
  PlanProblem problem;
  problem.stages = *rc::gen::suchThat(rc::gen::element(1, 2, 4),
                                      [&](int p) { return p <= devices && p <= layers; });
  problem.devices = devices / problem.stages;
  problem.micro_batches = *rc::gen::element<std::int64_t>(1, 2, 4, 8);
  const StrategyTree& vocabulary = model.vocabulary_of(problem.devices, problem.micro_batches);
  RC_PRE(!vocabulary.leaves.empty() &&
         !model.layers_of(problem.devices, problem.micro_batches).leaves.empty());
  problem.vocabulary =
      vocabulary.leaves[*rc::gen::inRange<std::size_t>(0, vocabulary.leaves.size())];
  const PipelineProblem pipeline = model.pipeline(problem);

  PipelineAnswer answer;
  std::vector<std::int64_t> form;
  int left = layers, before = 0;
  for (int i = 0; i < problem.stages; ++i) {
    const PipelineStage& stage = pipeline.stages[static_cast<std::size_t>(i)];
    const int count =
        i + 1 == problem.stages ? left : *rc::gen::inRange(1, left - (problem.stages - i - 1) + 1);
    left -= count;
    // Few different options, so that runs of equal layers happen.
    const auto some = *rc::gen::container<std::vector<std::int32_t>>(
        2,
        rc::gen::inRange<std::int32_t>(0, static_cast<std::int32_t>(stage.layers.options.size())));
    LayerAnswer layer_answer;
    for (int k = 0; k < count; ++k) layer_answer.sequence.push_back(*rc::gen::elementOf(some));
    LayerProblem p = stage.layers;
    p.layers = count;
    std::int64_t bytes = kMemory - p.budget_bytes + peak_of(p, layer_answer.sequence);
    const int last = p.options[static_cast<std::size_t>(layer_answer.sequence.back())].layout;
    if (!stage.arrival_bytes.empty())
      bytes += stage.arrival_bytes[static_cast<std::size_t>(before)];
    if (!stage.departure_bytes.empty())
      bytes += stage.departure_bytes[static_cast<std::size_t>(last)];
    before = last;
    form.push_back(bytes);
    answer.stages.push_back(std::move(layer_answer));
  }
  const auto priced = costmodel::plan_cost(costs, model.plan_of(problem, answer));
  RC_ASSERT(priced.has_value());
  for (std::size_t i = 0; i < form.size(); ++i) RC_ASSERT(form[i] <= priced->stage_peak_bytes[i]);
}

}  // namespace
}  // namespace orrery::search
