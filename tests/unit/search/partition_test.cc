// What partitions cost, and what the search makes of them.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/numbers.h"
#include "search/partition/partition_search.h"

namespace orrery::search {
namespace {

using plan::parse_sequence;
using plan::Partition;

costmodel::CostModel cost_of(const char* model, const char* cluster, std::uint32_t hosts) {
  return costmodel::CostModel::make(
             model::find_model(model).value(), topologies::catalog_topology(cluster, hosts).value(),
             std::nullopt,
             {.precision = model::Precision::kFloat32, .sequence = 1024, .library = {}})
      .value();
}

Partition partition(std::string_view text) { return Partition(parse_sequence(text).value()); }

class PartitionPricing : public testing::Test {
 protected:
  OperatorPrice price(int op, std::string_view sequence) {
    return prices_.price(prices_.graph().operators[as_index(op)], partition(sequence));
  }
  costmodel::CostModel cost_ = cost_of("llama-2-7b", "dgx-1-v100", 2);
  PartitionPrices prices_{cost_, plan::layer_graph(cost_.model(), 8, 1024, 1), 4};
};

TEST_F(PartitionPricing, AllReducesOfNeighboursAreThoseOfTheCostModel) {
  // K on the last two bits: groups of four neighbours, of the input's gradient [2, 1024, 4096].
  const OperatorPrice p = price(plan::kMlpInProduct, "B,B,K,K");
  const std::int64_t bytes = std::int64_t{2} * 1024 * 4096 * 4;
  EXPECT_EQ(p.phases[1].reduce_ps,
            cost_.collective(plan::Collective::kAllReduce, {"", 4, 1}, bytes, 0, 16).duration_ps());
  // B on the first two: of the weights' gradient, groups four apart.
  EXPECT_EQ(p.phases[2].reduce_ps, cost_
                                       .collective(plan::Collective::kAllReduce, {"", 4, 4},
                                                   std::int64_t{4096} * 22016 * 4 / 4, 0, 16)
                                       .duration_ps());
  EXPECT_EQ(p.phases[0].reduce_ps, 0);
}

TEST_F(PartitionPricing, PrimitivesReduceNothingAndHoldEverythingOnce) {
  const OperatorPrice p = price(plan::kMlpInProduct, "P4x4");
  for (const PhasePrice& phase : p.phases) {
    EXPECT_EQ(phase.reduce_ps, 0);
    EXPECT_EQ(phase.steps, 4);
    EXPECT_GT(phase.moves_ps, 0);
    EXPECT_LE(phase.exposed_ps, phase.moves_ps);
  }
  EXPECT_EQ(p.state_bytes, std::int64_t{4096} * 22016 * 16 / 16);
  EXPECT_EQ(p.stash_bytes, std::int64_t{8} * 1024 * 4096 * 4 / 16);
  // Replicated weights or inputs are held as often.
  EXPECT_EQ(price(plan::kMlpInProduct, "B,B,K,K").state_bytes, 4 * p.state_bytes);
  EXPECT_EQ(price(plan::kMlpInProduct, "K,K,K,K").stash_bytes, 16 * p.stash_bytes);
}

TEST_F(PartitionPricing, StreamsOverReplicasComputeTheSame) {
  EXPECT_EQ(price(plan::kStreamIn, "B,R,R,R").phases[0].compute_ps,
            price(plan::kStreamIn, "R,R,R,B").phases[0].compute_ps);
  EXPECT_GT(price(plan::kStreamIn, "B,R,R,R").phases[0].compute_ps,
            price(plan::kStreamIn, "B,M,M,M").phases[0].compute_ps);
}

TEST_F(PartitionPricing, StreamsOnAPrimitiveReduceAsOnItsSplits) {
  const OperatorPrice skewed = price(plan::kStreamIn, "B,B,P2x2+1"),
                      split = price(plan::kStreamIn, "B,B,M,K");
  for (std::size_t phase = 0; phase < 3; ++phase) {
    EXPECT_EQ(skewed.phases[phase].reduce_ps, split.phases[phase].reduce_ps);
    EXPECT_EQ(skewed.phases[phase].compute_ps, split.phases[phase].compute_ps);
  }
  EXPECT_GT(split.phases[0].reduce_ps, 0);
}

TEST(PartitionSearch, SequenceParallelismScattersItsSums) {
  // Tensor groups of eight in a host: two all-reduces a layer and pass become halves, and the
  // gathers are changes of layout.
  const costmodel::CostModel cost = cost_of("llama-2-7b", "dgx-a100", 1);
  const auto search =
      PartitionSearch::make(cost, {.bits = 3, .sequences = 8, .tokens = 1024}).value();
  std::vector<ConventionalAnswer> answers = search.conventional();
  const auto find = [&](bool split) -> const LayerChoice& {
    const auto at = std::ranges::find_if(answers, [&](const ConventionalAnswer& c) {
      return c.data == 1 && c.sequence_parallel == split;
    });
    return at->answer.layers.front();
  };
  std::int64_t reduces = 0, scatters = 0, gathers = 0;
  for (const OperatorChoice& op : find(true).operators) {
    if (op.price.state_bytes > 0)
      reduces += op.price.phases[0].reduce_ps + op.price.phases[1].reduce_ps;
    scatters += op.scatter_ps;
    gathers += op.forward_move_ps + op.backward_move_ps;
  }
  EXPECT_NEAR(real(scatters), real(reduces) / 2, 8);  // each half rounded down
  EXPECT_GT(gathers, 0);
  for (const OperatorChoice& op : find(false).operators) {
    EXPECT_EQ(op.scatter_ps, 0) << op.name;
    EXPECT_EQ(op.forward_move_ps + op.backward_move_ps, 0) << op.name;
  }
}

class PartitionSearchOf : public testing::TestWithParam<const char*> {};
// Of large layers, of small ones in which launches and streams weigh most, of grouped heads.
INSTANTIATE_TEST_SUITE_P(Models, PartitionSearchOf,
                         testing::Values("llama-2-7b", "gpt2", "bert-large", "llama-2-70b"));

TEST_P(PartitionSearchOf, NoConventionalPlanIsFaster) {
  const char* const model = GetParam();
  const costmodel::CostModel cost = cost_of(model, "dgx-1-v100", 2);
  for (const int bits : {1, 2, 3, 4}) {
    PartitionRequest request{.bits = bits, .sequences = 8, .tokens = 1024, .skews = 1};
    request.layers = bits == 2 ? 1 : 3;
    const auto search = PartitionSearch::make(cost, request).value();
    const PartitionAnswer best = search.best();
    // whole ticks: an operator or an edge is off by two at most
    const std::int64_t slack = 3 * 50 * search.tick_ps();
    for (const ConventionalAnswer& c : search.conventional())
      EXPECT_LE(best.time_ps, c.answer.time_ps + slack) << bits << " bits, data " << c.data;
    request.primitives = false;
    const auto splits = PartitionSearch::make(cost, request).value();
    EXPECT_LE(best.time_ps, splits.best().time_ps + slack);
    int layers = 0;
    for (const LayerChoice& layer : best.layers) layers += layer.count;
    EXPECT_EQ(layers, request.layers);
  }
}

TEST(PartitionSearch, MemoryWeightTradesTimeForMemory) {
  const costmodel::CostModel cost = cost_of("llama-2-7b", "dgx-1-v100", 1);
  PartitionRequest request{.bits = 3, .sequences = 8, .tokens = 1024};
  const PartitionAnswer fast = PartitionSearch::make(cost, request).value().best();
  request.memory_weight = 1e3;  // a second a GiB
  const PartitionAnswer small = PartitionSearch::make(cost, request).value().best();
  EXPECT_LT(small.memory_bytes, fast.memory_bytes);
  EXPECT_GT(small.time_ps, fast.time_ps);
}

TEST(PartitionSearch, KeepsWhatIsFixed) {
  const costmodel::CostModel cost = cost_of("llama-2-7b", "dgx-1-v100", 1);
  PartitionRequest request{.bits = 3, .sequences = 8, .tokens = 1024};
  request.fixed = {{"mlp in", parse_sequence("K,P2x2").value()}};
  const PartitionAnswer answer = PartitionSearch::make(cost, request).value().best();
  const auto& operators = answer.layers.front().operators;
  EXPECT_EQ(to_string(std::ranges::find(operators, "mlp in", &OperatorChoice::name)->sequence),
            "K,P2x2");
  request.fixed = {{"mlp inside", {}}};
  EXPECT_FALSE(PartitionSearch::make(cost, request));
  request.fixed = {{"mlp in", parse_sequence("H,P2x2").value()}};
  EXPECT_FALSE(PartitionSearch::make(cost, request));
}

TEST(PartitionSearch, RefusesWhatItCannotSplit) {
  const costmodel::CostModel experts = cost_of("mixtral-8x7b", "dgx-1-v100", 1);
  const PartitionRequest request{.bits = 1, .sequences = 8, .tokens = 1024};
  EXPECT_EQ(PartitionSearch::make(experts, request).error().front().code,
            base::ErrorCode::kUnsupported);
  const costmodel::CostModel one = cost_of("gpt2", "dgx-1-v100", 1);
  // Nothing of batch, tokens and keys halves, twelve heads twice.
  EXPECT_EQ(
      PartitionSearch::make(one, {.bits = 3, .sequences = 7, .tokens = 1023}).error().front().code,
      base::ErrorCode::kInconsistent);
  EXPECT_EQ(
      PartitionSearch::make(one, {.bits = 4, .sequences = 8, .tokens = 1024}).error().front().code,
      base::ErrorCode::kInconsistent);
}

}  // namespace
}  // namespace orrery::search
