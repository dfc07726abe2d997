#include "search/space/decision_tree.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace orrery::search {
namespace {

model::ModelSpec llama_like() {
  model::ModelSpec m;
  m.heads = 32;
  m.kv_heads = 8;
  m.ffn = 11008;
  m.vocab = 32000;
  return m;
}

/// Galvatron's dimensions with ZeRO-2 and Megatron sequence parallelism.
Space classic() {
  Space space;
  space.zero1 = space.recompute_selective = space.ring = space.ulysses = space.hybrid =
      space.strided = false;
  return space;
}

// Miao et al., VLDB 2023, section 3.2; counts as in Galvatron-BMW, TKDE 2024: data parallelism,
// whole or sharded, and tensor parallelism, either of them on neighbouring ranks, in stages of N /
// 1, N / 2, ... devices. Beyond 16 devices the planner leaves out tp 32.
TEST(LayerStrategies, CountsOfGalvatronsDimensionsAreThePublishedOnes) {
  Space space = classic();
  space.zero2 = space.sequence_parallel = space.recompute_full = false;
  space.strided = true;
  model::ModelSpec model = llama_like();
  model.kv_heads = 32;
  model.ffn = 11264;
  const auto counts = [&](int devices) {
    std::vector<std::size_t> of_stages;
    for (int g = devices; g >= 1; g /= 2)
      of_stages.push_back(layer_strategies(model, space, {g, 2048, 64, 1, 64}).leaves.size());
    return of_stages;
  };
  using Counts = std::vector<std::size_t>;
  EXPECT_EQ(counts(4), (Counts{7, 3, 1}));
  EXPECT_EQ(counts(8), (Counts{11, 7, 3, 1}));
  EXPECT_EQ(counts(16), (Counts{15, 11, 7, 3, 1}));
  space.recompute_full = true;
  EXPECT_EQ(counts(8), (Counts{22, 14, 6, 2}));
}

// 40 tokens are four chunks for cp 2 and eight for cp 4, but no sixteen.
TEST(LayerStrategies, RingsHoldPairsOfChunksUnderACausalMask) {
  EXPECT_FALSE(usual_space(32'767, false).ring);
  Space space = usual_space(32'768, false);
  ASSERT_TRUE(space.ring);
  const auto degrees = [&](const model::ModelSpec& model, int devices) {
    std::vector<int> found;
    for (const plan::LayerStrategy& s :
         layer_strategies(model, space, {devices, 40, devices, 1, devices}).leaves) {
      if (s.tp == 1 && std::ranges::count(found, s.cp) == 0) found.push_back(s.cp);
    }
    return found;
  };
  model::ModelSpec model = llama_like();
  EXPECT_EQ(degrees(model, 8), (std::vector{1, 2, 4}));
  model.causal = false;
  EXPECT_EQ(degrees(model, 8), (std::vector{1, 2, 4, 8}));
  space.fix_cp = 128;
  EXPECT_TRUE(layer_strategies(model, space, {128, 256, 128, 1, 8}).leaves.empty());
}

TEST(LayerStrategies, DegreesThatDoNotDivideArePrunedWithTheirReason) {
  const StrategyTree tree = layer_strategies(llama_like(), classic(), {16, 2048, 8, 4, 8});
  const auto reason = [&](std::string_view candidate) {
    for (const Pruned& p : tree.pruned) {
      if (p.candidate == candidate) return p.text;
    }
    return std::string();
  };
  EXPECT_EQ(reason("tp16 dp1"), "tp 16 does not divide 8 kv_heads");
  EXPECT_EQ(reason("tp1 dp16"), "dp 16 does not divide a micro-batch of 8 sequences");
  for (const plan::LayerStrategy& s : tree.leaves)
    EXPECT_TRUE(s.tp * s.dp == 16 && s.tp >= 2 && s.tp <= 8) << to_string(s);
}

TEST(LayerStrategies, CountsOfOneHost) {
  // tp1: zero 0, 2, 3 -> 3 + 2 per micro-batch; tp2 and tp4 twice that with sequence parallelism;
  // tp8 has no data parallelism.
  Space space = classic();
  EXPECT_EQ(layer_strategies(llama_like(), space, {8, 2048, 8, 8}).leaves.size(),
            2U * (5 + 10 + 10 + 2));
  // One micro-batch reduces once.
  EXPECT_EQ(layer_strategies(llama_like(), space, {8, 2048, 64, 1}).leaves.size(),
            2U * (3 + 6 + 6 + 2));
  space.recompute_full = false;
  space.sequence_parallel = false;
  EXPECT_EQ(layer_strategies(llama_like(), space, {8, 2048, 64, 1}).leaves.size(), 3U + 3 + 3 + 1);
  space.fix_tp = 4;
  EXPECT_EQ(layer_strategies(llama_like(), space, {8, 2048, 64, 1}).leaves.size(), 3U);
}

TEST(LayerStrategies, OffloadIsOfferedWhereverNothingIsRecomputedButForSlices) {
  Space space = classic();
  space.recompute_full = false;
  const std::size_t kept = layer_strategies(llama_like(), space, {8, 2048, 8, 8}).leaves.size();
  space.recompute_offload = true;
  EXPECT_EQ(layer_strategies(llama_like(), space, {8, 2048, 8, 8}).leaves.size(), 2 * kept);
  space.slices = true;
  for (const plan::LayerStrategy& s : layer_strategies(llama_like(), space, {8, 2048, 8, 8}).leaves)
    EXPECT_TRUE(s.slices == 1 || s.recompute == plan::Recompute::kNone);
}

TEST(LayerStrategies, StatesOnTheHostDoubleWhatThereIs) {
  Space space = classic();
  const TreeContext context{8, 2048, 8, 8};
  const std::size_t layers = layer_strategies(llama_like(), space, context).leaves.size(),
                    ends = vocabulary_strategies(llama_like(), space, context).leaves.size();
  space.states_on_host = true;
  EXPECT_EQ(layer_strategies(llama_like(), space, context).leaves.size(), 2 * layers);
  EXPECT_EQ(vocabulary_strategies(llama_like(), space, context).leaves.size(), 2 * ends);
  space.states_on_device = false;
  const StrategyTree there = layer_strategies(llama_like(), space, context);
  EXPECT_EQ(there.leaves.size(), layers);
  for (const plan::LayerStrategy& s : there.leaves) EXPECT_EQ(s.states, plan::States::kHost);
  // Partitioned layers have them on the device alone.
  EXPECT_TRUE(partition_shardings(space, 8).empty());
  space.states_on_device = true;
  for (const plan::LayerStrategy& s : partition_shardings(space, 8))
    EXPECT_EQ(s.states, plan::States::kDevice);
}

TEST(LayerStrategies, CountsOfTheRarerDimensions) {
  // One micro-batch, no tensor parallelism, no recomputation: (dp 8), (cp 2, dp 4), (cp 4, dp 2),
  // (cp 8); every cp > 1 as ring, and as Ulysses (8 key-value heads); zero 0 to 3.
  Space space = classic();
  space.zero1 = space.ring = space.ulysses = true;
  space.recompute_full = space.tensor = false;
  EXPECT_EQ(layer_strategies(llama_like(), space, {8, 2048, 64, 1, 8}).leaves.size(),
            4U + 3 * 2 * 4);
  space.ulysses = false;
  EXPECT_EQ(layer_strategies(llama_like(), space, {8, 2048, 64, 1, 8}).leaves.size(), 4U + 3 * 4);
  space.ring = false;
  EXPECT_EQ(layer_strategies(llama_like(), space, {8, 2048, 64, 1, 8}).leaves.size(), 4U);
  // Two hosts: zero 1 to 3 inside one of them as well.
  space.hybrid = true;
  EXPECT_EQ(layer_strategies(llama_like(), space, {16, 2048, 64, 1, 8}).leaves.size(), 4U + 3);
  // Tensor groups across: another leaf wherever there is data parallelism beside.
  space.hybrid = false;
  space.tensor = space.strided = true;
  space.sequence_parallel = false;
  EXPECT_EQ(layer_strategies(llama_like(), space, {8, 2048, 64, 1, 8}).leaves.size(),
            4U + 2 * 4 + 2 * 4 + 1);
}

TEST(LayerStrategies, OperatorsAndSlicesAreOfZero3Alone) {
  Space space = classic();
  space.recompute_full = space.tensor = false;
  const auto count = [&] {
    return layer_strategies(llama_like(), space, {8, 2048, 64, 1}).leaves.size();
  };
  const std::size_t plain = count();
  space.operators = true;
  EXPECT_EQ(count(), plain + 2);
  space.slices = true;  // 2, 4, 8, 16 of each
  EXPECT_EQ(count(), plain + 2 + 3 * 4);
  space.zero3 = false;
  EXPECT_EQ(count(), plain - 1);
  space.zero3 = true;
  // A hidden size of 4 * 17 can be cut in two and four.
  model::ModelSpec odd = llama_like();
  odd.hidden = 68;
  space.operators = false;
  EXPECT_EQ(layer_strategies(odd, space, {8, 2048, 64, 1}).leaves.size(), plain + 2);
}

TEST(LayerStrategies, ExpertsAddTheirDegrees) {
  model::ModelSpec mixture = llama_like();
  mixture.experts = 12;
  mixture.experts_per_token = 2;
  Space space = classic();
  space.recompute_full = space.sequence_parallel = space.zero2 = space.zero3 = false;
  const auto degrees = [&] {
    std::vector<std::pair<int, int>> all;
    for (const plan::LayerStrategy& s : layer_strategies(mixture, space, {8, 2048, 64, 1}).leaves)
      all.emplace_back(s.tp, s.ep);
    return all;
  };
  EXPECT_EQ(degrees(),
            (std::vector<std::pair<int, int>>{
                {1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {2, 4}, {4, 1}, {4, 2}, {8, 1}}));
  const StrategyTree tree = layer_strategies(mixture, space, {8, 2048, 64, 1});
  std::vector<std::string> experts;
  for (const Pruned& p : tree.pruned) {
    if (p.text == "ep 8 does not divide 12 experts") experts.push_back(p.candidate);
  }
  EXPECT_EQ(experts, std::vector<std::string>{"tp1 dp8 ep8"});
  space.fix_ep = 2;
  EXPECT_EQ(degrees(), (std::vector<std::pair<int, int>>{{1, 2}, {2, 2}, {4, 2}}));
  space.fix_ep = 1;
  EXPECT_EQ(degrees(), (std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {4, 1}, {8, 1}}));
  space.fix_ep = 16;
  EXPECT_TRUE(degrees().empty());
  EXPECT_TRUE(std::ranges::any_of(
      layer_strategies(mixture, space, {8, 2048, 64, 1}).pruned, [](const Pruned& p) {
        return p.candidate == "tp1 dp8 ep16" &&
               p.text == "ep 16 does not divide 8 ranks of the data group";
      }));
  space.fix_ep.reset();
  space.expert = false;
  EXPECT_EQ(degrees(), (std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {4, 1}, {8, 1}}));
  mixture.experts = 0;
  space.expert = true;
  space.fix_ep = 4;  // of blocks with experts
  EXPECT_EQ(degrees(), (std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {4, 1}, {8, 1}}));
}

// Over the tensor group as well where its tokens are split; 12 experts on up to 4 of 8 ranks.
TEST(LayerStrategies, FoldedExpertsSpreadOverTheTensorGroup) {
  model::ModelSpec mixture = llama_like();
  mixture.experts = 12;
  mixture.experts_per_token = 2;
  Space space = classic();
  space.recompute_full = space.zero1 = space.zero2 = space.zero3 = space.tensor_alone = false;
  const auto folded = [&] {
    std::vector<std::pair<int, int>> all;
    for (const plan::LayerStrategy& s : layer_strategies(mixture, space, {8, 2048, 64, 1}).leaves) {
      EXPECT_TRUE(!s.folded || s.sequence_parallel);
      if (s.folded) all.emplace_back(s.tp, s.ep);
    }
    return all;
  };
  EXPECT_EQ(folded(), (std::vector<std::pair<int, int>>{
                          {2, 1}, {2, 2}, {2, 4}, {4, 1}, {4, 2}, {4, 4}, {8, 1}, {8, 2}, {8, 4}}));
  space.fix_ep = 4;
  EXPECT_EQ(folded(), (std::vector<std::pair<int, int>>{{2, 4}, {4, 4}, {8, 4}}));
  space.unfolded = false;
  EXPECT_EQ(layer_strategies(mixture, space, {8, 2048, 64, 1}).leaves.size(), 3U);
  space.folding = false;
  EXPECT_TRUE(layer_strategies(mixture, space, {8, 2048, 64, 1}).leaves.empty());
}

TEST(VocabularyStrategies, HaveNeitherSequenceParallelismNorRecomputation) {
  const StrategyTree tree = vocabulary_strategies(llama_like(), Space{}, {8, 2048, 8, 8});
  EXPECT_EQ(tree.leaves.size(), 4U + 4 + 4 + 1);
  for (const plan::LayerStrategy& s : tree.leaves) {
    EXPECT_FALSE(s.sequence_parallel);
    EXPECT_EQ(s.recompute, plan::Recompute::kNone);
  }
}

}  // namespace
}  // namespace orrery::search
