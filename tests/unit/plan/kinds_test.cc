// Plans of models with blocks of several kinds: what is refused, and what a block of each kind is
// made of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/check/check.h"
#include "plan/lowering/lower.h"

namespace orrery::plan {
namespace {

using ::testing::HasSubstr;

model::ModelSpec named(const std::string& name) {
  auto found = model::find_model(name);
  EXPECT_TRUE(found.has_value()) << name;
  return *std::move(found);
}
Plan plan_of(const model::ModelSpec& m, UniformOptions o) {
  o.sequence = m.max_positions;
  auto plan = uniform_plan(m, "dgx-a100", 1, o);
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : base::to_string(plan.error()));
  return plan.value_or(Plan{});
}
std::string faults_of(const Plan& plan, const model::ModelSpec& m) {
  return base::to_string(validate(plan, m));
}

std::vector<std::string> names_of(const LayerTemplates& t, TemplateId id) {
  std::vector<std::string> names;
  for (const Op& op : t.program.templates[id].ops) names.push_back(op.name);
  return names;
}
std::int64_t count_of(const std::vector<std::string>& names, const std::string& name) {
  return std::count(names.begin(), names.end(), name);
}

LayerContext context_of(const model::ModelSpec& m, int kind) {
  LayerContext c;
  c.sequence = m.max_positions;
  c.micro_batch_sequences = c.global_batch = 2;
  c.kind = kind;
  return c;
}

TEST(KindsOfBlocks, EncoderOutputStaysOnAStageSoOtherSchedulesAreRefused) {
  const model::ModelSpec t5 = named("t5-small");
  Plan plan = plan_of(t5, {.pp = 2, .global_batch = 4});
  plan.schedule = Schedule::kZeroBubbleH1;
  EXPECT_THAT(faults_of(plan, t5), HasSubstr("schedule zb-h1 of an encoder-decoder"));
}

TEST(KindsOfBlocks, ContextParallelismOfImagesIsRefused) {
  const model::ModelSpec swin = named("swin-base");
  Plan plan = plan_of(swin, {.dp = 2, .global_batch = 4});
  plan.stages[0].runs[0].strategy.dp = 1;
  plan.stages[0].runs[0].strategy.cp = 2;
  EXPECT_THAT(faults_of(plan, swin), HasSubstr("context parallelism of family swin"));
  plan = plan_of(swin, {.dp = 2, .global_batch = 4});
  plan.vocabulary.dp = 1;
  plan.vocabulary.cp = 2;
  EXPECT_THAT(faults_of(plan, swin), HasSubstr("vocabulary.cp is 2"));
}

TEST(KindsOfBlocks, AnImageIsAllItsTokens) {
  const model::ModelSpec vit = named("vit-base");
  Plan plan = plan_of(vit, {.global_batch = 4});
  plan.sequence = 100;
  EXPECT_THAT(faults_of(plan, vit), HasSubstr("an image of model 'vit-base' is 197 tokens"));
}

// Stage 1 has 4 heads, stage 2 has 8: the fault names the kind that does not divide.
TEST(KindsOfBlocks, DegreesAreCheckedAgainstEveryKindOfARun) {
  const model::ModelSpec swin = named("swin-base");
  Plan plan = plan_of(swin, {.tp = 4, .global_batch = 4});
  for (LayerRun& run : plan.stages[0].runs) run.strategy.tp = 8;
  plan.vocabulary.tp = 8;
  const std::string faults = faults_of(plan, swin);
  EXPECT_THAT(faults,
              HasSubstr("stages[0].runs[0].strategy (stage 1).tp = 8 does not divide 4 heads"));
  EXPECT_THAT(faults, ::testing::Not(HasSubstr("(stage 2)")));
}

TEST(KindsOfBlocks, ExpertsAreSplitWhereThereAreSome) {
  const model::ModelSpec mixture = named("deepseek-moe-16b");
  const Plan plan = plan_of(mixture, {.dp = 4, .ep = 4, .global_batch = 4});
  ASSERT_EQ(plan.stages[0].runs.size(), 2u);
  EXPECT_EQ(plan.stages[0].runs[0].count, 1);
  EXPECT_EQ(plan.stages[0].runs[0].strategy.ep, 1);
  EXPECT_EQ(plan.stages[0].runs[1].strategy.ep, 4);
}

// tp 2 without sequence parallelism: the decoder's block all-reduces once more forward (cross p),
// and twice more backward (d encoded, d cross a).
TEST(KindsOfBlocks, DecoderBlockHasASecondAttention) {
  const model::ModelSpec t5 = named("t5-small");
  const LayerStrategy tp2{.tp = 2};
  const LayerTemplates encoder = lower_block(t5, tp2, context_of(t5, 0)),
                       decoder = lower_block(t5, tp2, context_of(t5, 2));
  const auto forward = names_of(decoder, decoder.forward),
             backward = names_of(decoder, decoder.backward);
  for (const char* name : {"cross.norm", "cross_q", "cross_kv", "cross_attention",
                           "cross_projection", "all_reduce(cross p)", "residual_cross"})
    EXPECT_EQ(count_of(forward, name), 1) << name;
  EXPECT_EQ(forward.size(), names_of(encoder, encoder.forward).size() + 7);
  for (const char* name : {"all_reduce(d encoded)", "add(d encoded)", "all_reduce(d cross a)"})
    EXPECT_EQ(count_of(backward, name), 1) << name;
}

// A shared expert without a gate is added behind combine, whose gates are then those of the routed
// experts alone.
TEST(KindsOfBlocks, UngatedSharedExpertIsAdded) {
  const model::ModelSpec mixture = named("deepseek-moe-16b");
  const LayerTemplates t = lower_block(mixture, {}, context_of(mixture, 1));
  EXPECT_EQ(count_of(names_of(t, t.forward), "add(shared z)"), 1);
  for (const model::SegmentShape& s : t.program.segments) EXPECT_FALSE(s.shared);
}

// Windows are sequences of their own: 2 images of 56 x 56 tokens make 128 windows of 49.
TEST(KindsOfBlocks, WindowsAreSequences) {
  const model::ModelSpec swin = named("swin-base");
  const LayerTemplates t = lower_block(swin, {}, context_of(swin, 0));
  bool found = false;
  for (const model::SegmentShape& s : t.program.segments) {
    if (s.kind != model::SegmentKind::kAttention) continue;
    found = true;
    EXPECT_EQ(s.sequences, 128);
    EXPECT_EQ(s.tokens, 49);
  }
  EXPECT_TRUE(found);
}

// Blocks 2, 2, 18 and 2 a stage, of which the first but in stage 1 merges: kinds 0 to 6.
TEST(KindsOfBlocks, WindowsKnowTheirImageAndStage) {
  const model::ModelSpec swin = named("swin-base");
  const model::ImageWindows expected[] = {{3136, 3, 0}, {784, 2, 2}, {784, 2, 2}, {196, 1, 4},
                                          {196, 1, 4},  {49, 0, 22}, {49, 0, 22}};
  ASSERT_EQ(swin.kinds(), 7);
  for (int kind = 0; kind < 7; ++kind) {
    const LayerTemplates t = lower_block(swin, {}, context_of(swin, kind));
    int cores = 0;
    for (const model::SegmentShape& s : t.program.segments) {
      if (s.kind != model::SegmentKind::kAttention) continue;
      ++cores;
      EXPECT_EQ(s.windows, expected[kind]) << kind;
    }
    EXPECT_EQ(cores, 1) << kind;
  }
}

}  // namespace
}  // namespace orrery::plan
