// uniform_plan and validate: what is accepted, and every fault with its hint.
#include "plan/program/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "tests/unit/plan/small_program.h"

namespace orrery::plan {
namespace {

using testing::HasSubstr;
using testing::Not;

model::ModelSpec llama() {
  model::ModelSpec m = small_model(true);
  m.layers = 32;
  m.heads = 32;
  m.kv_heads = 8;
  m.head_dim = 4;
  m.hidden = 128;
  m.ffn = 96;
  m.max_positions = 20;
  return m;
}

std::string uniform_error(const UniformOptions& options) {
  const auto plan = uniform_plan(llama(), "test", 1, options);
  return plan ? "a plan" : base::to_string(plan.error());
}

Plan valid_plan() { return small_plan(llama(), {.tp = 4, .pp = 2, .dp = 2, .global_batch = 16}); }

std::string validation(const Plan& plan) { return base::to_string(validate(plan, llama())); }

TEST(UniformPlan, SplitsLayersAndBatchExactly) {
  const auto plan = uniform_plan(llama(), "dgx", 2,
                                 {.tp = 4,
                                  .pp = 4,
                                  .dp = 2,
                                  .zero = 1,
                                  .sequence_parallel = true,
                                  .recompute = Recompute::kFull,
                                  .micro_batch = 2,
                                  .global_batch = 64});
  ASSERT_TRUE(plan.has_value()) << base::to_string(plan.error());
  EXPECT_EQ(plan->world_size(), 32);
  EXPECT_EQ(plan->micro_batches, 16);
  EXPECT_EQ(plan->micro_batch_sequences(), 4);
  EXPECT_EQ(plan->sequence, 20);
  ASSERT_EQ(plan->stages.size(), 4U);
  for (const Stage& stage : plan->stages) EXPECT_EQ(stage.layers(), 8);
  EXPECT_EQ(to_string(plan->stages[0].runs[0].strategy), "tp4 dp2 zero1 sp recompute=full");
  EXPECT_EQ(to_string(plan->vocabulary), "tp4 dp2 zero1");
  EXPECT_EQ(validation(*plan), "");
}

TEST(UniformPlan, UnevenStagesAreAFaultThatNamesTheNearestDegrees) {
  const std::string error = uniform_error({.pp = 5, .global_batch = 8});
  EXPECT_THAT(error, HasSubstr("32 layers do not divide into 5 equal stages"));
  EXPECT_THAT(error, HasSubstr("nearest pp: 4 or 8"));
}

TEST(UniformPlan, MoreStagesThanLayersIsAFault) {
  EXPECT_THAT(uniform_error({.pp = 64}), HasSubstr("pp is at most 32"));
}

TEST(UniformPlan, BatchThatDoesNotDivideIsAFaultThatNamesTheNearest) {
  const std::string error = uniform_error({.dp = 3, .micro_batch = 1, .global_batch = 64});
  EXPECT_THAT(error, HasSubstr("dp * micro_batch must divide 64; nearest: 2 or 4"));
}

TEST(UniformPlan, HugeNumbersAreFaultsAndDoNotOverflow) {
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_THAT(uniform_error({.dp = 1 << 30, .micro_batch = huge, .global_batch = huge}),
              HasSubstr("global_batch is"));
  EXPECT_THAT(uniform_error({.dp = 1 << 30, .micro_batch = huge, .global_batch = 8}),
              HasSubstr("dp * micro_batch must divide 8"));
  EXPECT_THAT(uniform_error({.tp = 1 << 30, .pp = 32, .dp = 1}),
              HasSubstr("at most 1048576 ranks"));
}

TEST(UniformPlan, ZeroDegreesAreAllReported) {
  const std::string error =
      uniform_error({.tp = 0, .pp = -1, .dp = 0, .micro_batch = 0, .global_batch = 0});
  for (const char* what :
       {"tp is 0", "pp is -1", "dp is 0", "micro_batch is 0", "global_batch is 0"})
    EXPECT_THAT(error, HasSubstr(what));
}

TEST(UniformPlan, DegreeThatDoesNotDivideTheHeadsIsReportedWithThoseThatDo) {
  EXPECT_THAT(uniform_error({.tp = 3, .global_batch = 8}),
              HasSubstr("tp must divide 32 heads: 1, 2, 4, 8, 16, 32"));
}

TEST(Validate, AcceptsAUniformPlan) { EXPECT_EQ(validation(valid_plan()), ""); }

TEST(Validate, DegreeMustDivideHeadsKvHeadsFfnAndSequence) {
  Plan plan = valid_plan();
  plan.stages[0].runs[0].strategy.tp = 3;
  plan.stages[0].runs[0].strategy.sequence_parallel = true;
  const std::string faults = validation(plan);
  EXPECT_THAT(faults, HasSubstr("stages[0].runs[0].strategy.tp = 3 does not divide 32 heads"));
  EXPECT_THAT(faults, HasSubstr("tp must divide 8 kv_heads: 1, 2, 4, 8"));
  EXPECT_THAT(faults, HasSubstr("3 does not divide 20 tokens"));
  plan.stages[0].runs[0].strategy.tp = 64;
  EXPECT_THAT(validation(plan), HasSubstr("64 does not divide 96 ffn features"));
}

TEST(Validate, BatchMustDivideByMicroBatchesAndByEveryDegree) {
  Plan plan = valid_plan();
  plan.micro_batches = 3;
  EXPECT_THAT(validation(plan),
              HasSubstr("global_batch of 16 sequences does not divide into 3 micro_batches; "
                        "micro_batches must divide 16; nearest: 2 or 4"));
  plan.micro_batches = 16;
  const std::string faults = validation(plan);
  EXPECT_THAT(faults, HasSubstr("vocabulary.dp = 2 does not divide 1 sequences of a micro-batch"));
  EXPECT_THAT(
      faults,
      HasSubstr("stages[1].runs[0].strategy.dp = 2 does not divide 1 sequences of a micro-batch"));
}

TEST(Validate, EveryLayerUsesAllRanksOfItsStage) {
  Plan plan = valid_plan();
  plan.stages[1].runs[0].strategy.dp = 1;
  EXPECT_THAT(validation(plan),
              HasSubstr("stages[1].runs[0].strategy has tp * cp * dp = 4 and vocabulary has 8"));
}

TEST(Validate, CountsAddUpToTheModelsLayers) {
  Plan plan = valid_plan();
  plan.stages[1].runs[0].count = 15;
  EXPECT_THAT(validation(plan),
              HasSubstr("the stages hold 31 layers and model 'small-llama' has 32"));
  plan.stages[1].runs.clear();
  EXPECT_THAT(validation(plan), HasSubstr("stages[1] has no layers"));
  plan.stages.clear();
  EXPECT_THAT(validation(plan), HasSubstr("stages is empty"));
}

TEST(Validate, NeighbouringDegreesMustNest) {
  Plan plan = valid_plan();
  model::ModelSpec m = llama();
  m.heads = m.kv_heads = 12;
  plan.model_fingerprint = m.fingerprint();
  plan.micro_batches = 1;
  plan.global_batch = 12;
  plan.vocabulary = {.tp = 6, .dp = 2};
  plan.stages[0].runs[0].strategy = {.tp = 6, .dp = 2};
  plan.stages[1].runs[0].strategy = {.tp = 4, .dp = 3};
  const std::string faults = base::to_string(validate(plan, m));
  EXPECT_THAT(faults, HasSubstr("stages[1].runs[0].strategy.tp = 4 follows a layer with tp = 6"));
  EXPECT_THAT(faults, HasSubstr("vocabulary.tp = 6 follows a layer with tp = 4"));
}

TEST(Validate, VocabularyHasNeitherSequenceParallelismNorRecomputation) {
  Plan plan = valid_plan();
  plan.vocabulary.sequence_parallel = true;
  plan.vocabulary.recompute = Recompute::kFull;
  const std::string faults = validation(plan);
  EXPECT_THAT(faults, HasSubstr("vocabulary.sequence_parallel is true"));
  EXPECT_THAT(faults, HasSubstr("vocabulary.recompute is full"));
}

TEST(Validate, SequenceParallelismNeedsATensorGroup) {
  const Plan plan = small_plan(llama(), {.dp = 8, .global_batch = 8});
  Plan wrong = plan;
  wrong.stages[0].runs[0].strategy.sequence_parallel = true;
  EXPECT_EQ(validation(plan), "");
  EXPECT_THAT(validation(wrong), HasSubstr("sequence_parallel is true with tp = 1"));
}

TEST(Validate, MicroBatchReductionNeedsShardedGradients) {
  Plan plan = valid_plan();
  plan.stages[0].runs[0].strategy.grad_reduce = GradReduce::kMicroBatch;
  EXPECT_THAT(validation(plan), HasSubstr("grad_reduce is micro_batch with zero = 0"));
  plan.stages[0].runs[0].strategy.zero = 2;
  EXPECT_EQ(validation(plan), "");
}

TEST(Validate, ZeroOverOneDataParallelRankIsAllowed) {
  EXPECT_EQ(validation(small_plan(llama(), {.tp = 8, .zero = 3, .global_batch = 8})), "");
}

TEST(Validate, RangesAreChecked) {
  Plan plan = valid_plan();
  plan.sequence = 21;
  plan.hosts = 0;
  plan.prefetch_depth = -1;
  plan.vocabulary.zero = 4;
  const std::string faults = validation(plan);
  for (const char* what : {"sequence is 21 tokens; model 'small-llama' takes 1 to 20 tokens",
                           "hosts is 0", "prefetch_depth is -1", "vocabulary.zero is 4"}) {
    EXPECT_THAT(faults, HasSubstr(what));
  }
}

TEST(Validate, PlanForAnotherModelIsCaughtByItsFingerprint) {
  model::ModelSpec other = llama();
  other.name = "other";
  other.rope_theta = 500000.0;
  EXPECT_THAT(base::to_string(validate(valid_plan(), other)),
              HasSubstr("the plan was made for model 'small-llama'"));
}

/// Twelve experts and a shared one.
model::ModelSpec mixture() {
  model::ModelSpec m = llama();
  m.experts = 12;
  m.experts_per_token = 2;
  m.shared_ffn = 6;
  return m;
}
std::string expert_validation(LayerStrategy change) {
  Plan plan = small_plan(mixture(), {.tp = 2, .dp = 8, .global_batch = 16});
  change.tp = 2;
  change.dp = 8;
  plan.stages[0].runs[0].strategy = change;
  return base::to_string(validate(plan, mixture()));
}

TEST(Validate, ExpertsDivideOverNeighboursOfTheDataGroup) {
  EXPECT_EQ(expert_validation({.ep = 1}), "");
  EXPECT_EQ(expert_validation({.ep = 4}), "");
  EXPECT_THAT(expert_validation({.ep = 8}), HasSubstr("ep = 8 does not divide 12 experts"));
  EXPECT_THAT(expert_validation({.ep = 3}),
              HasSubstr("ep = 3 does not divide 8 ranks of the data group"));
  EXPECT_THAT(uniform_error({.dp = 2, .ep = 2, .global_batch = 2}), HasSubstr("has no experts"));
  EXPECT_THAT(base::to_string(uniform_plan(mixture(), "test", 1, {.tp = 4}).error()),
              HasSubstr("ffn features of the shared expert"));
}

TEST(Validate, ExpertsAreShardedAsAWholeOverAllTheirReplicas) {
  EXPECT_EQ(expert_validation({.zero = 3, .ep = 2}), "");
  EXPECT_THAT(expert_validation({.zero = 1, .ep = 2, .shard = 2}), HasSubstr("sharded by groups"));
  EXPECT_THAT(expert_validation({.ep = 2, .strided = true}), HasSubstr("strided"));
  EXPECT_THAT(expert_validation({.zero = 3, .operators = ShardedOperators::kMlp}),
              HasSubstr("operators or slices"));
}

TEST(Validate, SlicesDivideWhatTheShardedProductsContract) {
  const auto errors = [](const LayerStrategy& s) {
    model::ModelSpec m = llama();
    m.hidden = 24;
    m.heads = m.kv_heads = 8;
    m.head_dim = 3;
    m.ffn = 40;
    Plan plan = valid_plan();
    plan.model_fingerprint = m.fingerprint();
    plan.vocabulary = {.tp = s.tp, .dp = s.dp};
    for (Stage& stage : plan.stages)
      for (LayerRun& run : stage.runs) run.strategy = s;
    return base::to_string(validate(plan, m));
  };
  EXPECT_EQ(errors({.tp = 2, .dp = 2, .zero = 3, .slices = 4}), "");
  EXPECT_THAT(errors({.tp = 2, .dp = 2, .zero = 3, .slices = 5}),
              HasSubstr("slices = 5 does not divide 24 hidden features"));
  EXPECT_THAT(errors({.tp = 2, .dp = 2, .zero = 3, .slices = 6}),
              HasSubstr("slices = 6 does not divide 20 ffn features of a rank"));
  EXPECT_EQ(
      errors({.tp = 2, .dp = 2, .zero = 3, .operators = ShardedOperators::kAttention, .slices = 6}),
      "");
  EXPECT_THAT(
      errors({.tp = 2, .dp = 2, .zero = 3, .operators = ShardedOperators::kAttention, .slices = 8}),
      HasSubstr("features of a rank's heads"));
  EXPECT_THAT(errors({.tp = 2, .dp = 2, .zero = 3, .slices = 65}), HasSubstr("at most 64"));
  EXPECT_THAT(errors({.tp = 2, .dp = 2, .zero = 2, .slices = 2}), HasSubstr("use zero 3"));
}

TEST(Validate, PiecesAreOfWhatSequenceParallelismGathers) {
  const auto errors = [](const LayerStrategy& s) {
    Plan plan = valid_plan();
    plan.vocabulary = {.tp = s.tp, .dp = s.dp};
    for (Stage& stage : plan.stages)
      for (LayerRun& run : stage.runs) run.strategy = s;
    return base::to_string(validate(plan, llama()));
  };
  EXPECT_EQ(errors({.tp = 2, .dp = 2, .sequence_parallel = true, .tensor_pieces = 5}), "");
  EXPECT_THAT(errors({.tp = 2, .dp = 2, .tensor_pieces = 4}), HasSubstr("use sequence_parallel"));
  EXPECT_THAT(errors({.tp = 2, .dp = 2, .sequence_parallel = true, .tensor_pieces = 3}),
              HasSubstr("tensor_pieces = 3 does not divide"));
  EXPECT_THAT(errors({.tp = 2, .dp = 2, .sequence_parallel = true, .tensor_pieces = 65}),
              HasSubstr("between 1 and 64"));
  EXPECT_THAT(errors({.tp = 2, .sequence_parallel = true, .cp = 2, .tensor_pieces = 5}),
              Not(HasSubstr("tensor_pieces")));
  // products of degrees beyond an int are faults, not overflows
  EXPECT_FALSE(errors({.tp = 1 << 20,
                       .sequence_parallel = true,
                       .cp = 1 << 12,
                       .context = ContextKind::kUlysses,
                       .tensor_pieces = 4})
                   .empty());
}

TEST(Validate, EveryFaultHasAHint) {
  Plan plan = valid_plan();
  plan.model_fingerprint = "0";
  plan.sequence = plan.global_batch = plan.micro_batches = 0;
  plan.hosts = plan.prefetch_depth = -1;
  plan.vocabulary = {.tp = 3,
                     .dp = 5,
                     .zero = 9,
                     .sequence_parallel = true,
                     .recompute = Recompute::kFull,
                     .grad_reduce = GradReduce::kMicroBatch};
  plan.stages[0].runs[0] = {.count = -1, .strategy = {.tp = 7, .dp = 0, .zero = -1}};
  const base::Diagnostics faults = validate(plan, llama());
  EXPECT_GE(faults.size(), 12U);
  for (const base::Diagnostic& fault : faults) EXPECT_NE(fault.hint, "") << fault.message;
}

TEST(Canonical, JoinsEqualRunsAndDropsEmptyOnes) {
  Plan plan = valid_plan();
  const LayerStrategy s = plan.stages[0].runs[0].strategy;
  LayerStrategy other = s;
  other.recompute = Recompute::kFull;
  plan.stages[0].runs = {{4, s}, {0, other}, {4, s}, {8, other}};
  EXPECT_EQ(canonical(plan).stages[0].runs, (std::vector<LayerRun>{{8, s}, {8, other}}));
}

TEST(StageLayers, SpreadAsEvenlyAsTheyCanBe) {
  EXPECT_EQ(stage_layers(8, 4, 1), (std::vector<int>{2, 2, 2, 2}));
  EXPECT_EQ(stage_layers(9, 4, 1), (std::vector<int>{2, 2, 3, 2}));
  EXPECT_EQ(stage_layers(11, 4, 1), (std::vector<int>{3, 3, 3, 2}));
  EXPECT_EQ(stage_layers(5, 1, 1), (std::vector<int>{5}));
  EXPECT_EQ(stage_layers(3, 2, 1), (std::vector<int>{2, 1}));
  const std::vector<int> llama = stage_layers(126, 16, 1);  // arXiv 2407.21783, section 3.3.2
  EXPECT_EQ(llama.front(), 7);
  EXPECT_EQ(llama.back(), 7);
  EXPECT_EQ(std::count(llama.begin(), llama.end(), 8), 14);
  // Two chunks: rank 0 has stages 0 and 3, the shorter first; rank 2 has 2 and 5, the shorter last.
  EXPECT_EQ(stage_layers(9, 3, 2), (std::vector<int>{1, 1, 2, 2, 2, 1}));
}

TEST(StageLayers, AddUpAndNoStageIsEmpty) {
  for (int layers = 1; layers <= 40; ++layers)
    for (int pp = 1; pp <= layers; ++pp)
      for (int v = 1; pp * v <= layers; ++v) {
        const std::vector<int> counts = stage_layers(layers, pp, v);
        ASSERT_EQ(counts.size(), static_cast<std::size_t>(pp * v));
        EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), layers);
        const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
        EXPECT_GE(*least, 1);
        EXPECT_LE(*most - *least, 1) << layers << " layers, " << pp << " ranks, " << v << " chunks";
      }
}

TEST(UniformPlan, UnevenStagesAndContextParallelismOnRequest) {
  const Plan plan =
      uniform_plan(llama(), "test", 1,
                   {.pp = 5, .micro_batch = 1, .global_batch = 4, .cp = 2, .uneven_stages = true})
          .value();
  EXPECT_EQ(plan.world_size(), 10);
  EXPECT_EQ(plan.micro_batches, 4);
  std::vector<int> layers;
  for (const Stage& s : plan.stages) layers.push_back(s.layers());
  EXPECT_EQ(layers, (std::vector<int>{6, 6, 7, 7, 6}));
  EXPECT_EQ(plan.stages[0].runs[0].strategy.cp, 2);
}

}  // namespace
}  // namespace orrery::plan
