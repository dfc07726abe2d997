// Galvatron-BMW's balanced partitions beside the exact ones: never better, and as good where stages
// can be equal.
#include <gtest/gtest.h>

#include <iostream>

#include "search/programs/balanced_partition.h"
#include "search/programs/pipeline_program.h"
#include "tests/oracle/search/random_layers.h"

namespace orrery::search {
namespace {

/// Stages of equal layers, each with its best strategies for m N + Y. One layout, so that stages
/// are independent.
class LayerPrograms final : public StageOptimizer {
 public:
  explicit LayerPrograms(const PipelineProblem& p) : p_(p) {}
  std::optional<StageLoad> best(std::size_t stage, int, int count) override {
    const PipelineStage& s = p_.stages[stage];
    LayerProblem layers = s.layers;
    layers.layers = count;
    Effort effort;
    const Bounded found = solve_layers(layers, {p_.micro_batches, 1}, kNoAnswer, effort);
    if (!found.answer) return std::nullopt;
    return StageLoad{found.answer->steady_ps + s.steady_ps, found.answer->once_ps + s.once_ps,
                     found.answer->memory_bytes};
  }

 private:
  const PipelineProblem& p_;
};

/// 1F1B on `stages` stages: stage i holds min(P - i, m) stashes of a micro-batch. `embedding`: of
/// the first stage, in layers.
PipelineProblem random_pipeline(base::Rng& rng, std::size_t stages, int layers, bool embedding) {
  PipelineProblem p;
  p.layers = layers;
  p.micro_batches = 1 + draw(rng, 16);
  std::vector<LayerOption> options;
  for (int k = 0; k < 4; ++k) {
    const std::int64_t stash = 10 + draw(rng, 90);
    options.push_back({.steady_ps = 2000 - 10 * stash + draw(rng, 300),
                       .once_ps = draw(rng, 200),
                       .memory_bytes = 50 + draw(rng, 100),
                       .stash_bytes = stash});
  }
  for (std::size_t i = 0; i < stages; ++i) {
    PipelineStage stage;
    const std::int64_t flight =
        std::min<std::int64_t>(static_cast<std::int64_t>(stages - i), p.micro_batches);
    for (LayerOption o : options) {
      o.memory_bytes += flight * o.stash_bytes;
      stage.layers.options.push_back(o);
    }
    stage.layers.flight = flight;
    stage.layers.budget_bytes = layers * (150 + draw(rng, 250)) / 2;
    if (embedding && i == 0) stage.steady_ps = draw(rng, 4000);
    stage.most = layers - static_cast<int>(stages) + 1;
    p.stages.push_back(std::move(stage));
  }
  return p;
}

/// p_m and p_t by the first option of a layer.
std::optional<BalancedPartition> bmw(const PipelineProblem& p) {
  std::vector<std::int64_t> ps, bytes, ends_ps, none(p.stages.size(), 0);
  for (int i = 0; i < p.layers; ++i) {
    ps.push_back(p.stages.front().layers.options.front().steady_ps);
    bytes.push_back(p.stages.front().layers.options.front().memory_bytes);
  }
  for (const PipelineStage& s : p.stages) ends_ps.push_back(s.steady_ps);
  LayerPrograms programs(p);
  return balance(balanced_division(bytes, none), balanced_division(ps, ends_ps), p.micro_batches,
                 programs);
}

TEST(BalancedPartitionOracle, TheExactPartitionIsNeverWorse) {
  int both = 0, equal = 0;
  double loss = 0, worst = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    base::Rng rng(seed + 16'000'000);
    const std::size_t stages = 2 + rng.below(3);
    const PipelineProblem p = random_pipeline(
        rng, stages, static_cast<int>(stages) + static_cast<int>(draw(rng, 10)), true);
    Effort effort;
    const auto exact = solve_pipeline(p, kForbidden, effort);
    const auto balanced = bmw(p);
    if (!balanced) continue;
    ASSERT_TRUE(exact.has_value()) << "seed " << seed;
    ++both;
    ASSERT_LE(exact->cost_ps, balanced->cost_ps) << "seed " << seed;
    equal += exact->cost_ps == balanced->cost_ps ? 1 : 0;
    const double more =
        static_cast<double>(balanced->cost_ps) / static_cast<double>(exact->cost_ps) - 1;
    loss += more;
    worst = std::max(worst, more);
  }
  std::cout << both << " pipelines: BMW's partition as good in " << equal << ", on average "
            << 100 * loss / both << " % dearer, at most " << 100 * worst << " %\n";
  EXPECT_GT(both, 1000);
}

// With room for everything and as many layers for each stage, all balance is one: nothing is lost.
TEST(BalancedPartitionOracle, EqualStagesAreTheBestOnes) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    base::Rng rng(seed + 17'000'000);
    const std::size_t stages = 2 + rng.below(3);
    PipelineProblem p = random_pipeline(
        rng, stages, static_cast<int>(stages) * (1 + static_cast<int>(draw(rng, 4))), false);
    for (PipelineStage& s : p.stages) {
      s.layers.options = {s.layers.options.front()};
      s.layers.budget_bytes = 1'000'000;
    }
    Effort effort;
    const auto exact = solve_pipeline(p, kForbidden, effort);
    const auto balanced = bmw(p);
    ASSERT_TRUE(exact.has_value() && balanced.has_value()) << "seed " << seed;
    EXPECT_EQ(exact->cost_ps, balanced->cost_ps) << "seed " << seed;
    EXPECT_EQ(balanced->partition, Partition(stages, p.layers / static_cast<int>(stages)))
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace orrery::search
