#include "search/space/space_text.h"

#include <gtest/gtest.h>

#include "search/space/decision_tree.h"
#include "tests/unit/search/tiny_fixture.h"

namespace orrery::search {
namespace {

TEST(SpaceText, UsualStandsForWhatTheSpaceHas) {
  const Space usual{.zero2 = false};
  Space more = usual;
  more.ring = more.spatial_temporal = true;
  EXPECT_EQ(restrict_to_dimensions("usual, ring,spatial-temporal", usual), more);
  EXPECT_FALSE(restrict_to_dimensions("spatial-temporal", usual));
}

TEST(SpaceText, NamedDimensionsAndNoOthersAreAllowed) {
  const auto space = restrict_to_dimensions("dp, zero1,tp", Space{});
  ASSERT_TRUE(space.has_value());
  EXPECT_TRUE(space->data && space->zero1 && space->tensor);
  EXPECT_FALSE(space->zero2 || space->zero3 || space->pipeline || space->sequence_parallel ||
               space->recompute_full || space->recompute_selective);
  EXPECT_TRUE(space->gpipe && space->one_f_one_b);
}

TEST(SpaceText, OffloadIsSearchedOnRequestAlone) {
  EXPECT_FALSE(Space{}.recompute_offload);
  const auto space = restrict_to_dimensions("usual,offload", Space{});
  ASSERT_TRUE(space.has_value());
  EXPECT_TRUE(space->recompute_offload && space->recompute_none && space->recompute_full);
  EXPECT_TRUE(space->states_on_host && space->states_on_device);
  EXPECT_FALSE(restrict_to_dimensions("usual", Space{})->states_on_host);
  const auto there = fix_values("states=host", Space{});
  ASSERT_TRUE(there.has_value());
  EXPECT_TRUE(there->states_on_host && !there->states_on_device);
  EXPECT_FALSE(fix_values("states=disk", Space{}).has_value());
  const auto fixed = fix_values("recompute=offload", Space{});
  ASSERT_TRUE(fixed.has_value());
  EXPECT_TRUE(fixed->recompute_offload);
  EXPECT_FALSE(fixed->recompute_none || fixed->recompute_full || fixed->recompute_selective);
}

TEST(SpaceText, EveryFaultOfAListIsReportedWithAHint) {
  const auto space = restrict_to_dimensions("dp,tpp,dp,", Space{});
  ASSERT_FALSE(space.has_value());
  ASSERT_EQ(space.error().size(), 3U) << base::to_string(space.error());
  EXPECT_EQ(space.error()[0].code, base::ErrorCode::kBadValue);
  EXPECT_EQ(space.error()[0].hint, "did you mean 'tp'?");
  EXPECT_EQ(space.error()[1].code, base::ErrorCode::kDuplicateKey);
}

TEST(SpaceText, ValuesAreFixed) {
  const auto space = fix_values(
      "tp=8,pp=2,dp=4,zero=1,sp=on,recompute=full,micro_batches=16,micro_batch=2,schedule=gpipe",
      Space{});
  ASSERT_TRUE(space.has_value()) << base::to_string(space.error());
  EXPECT_EQ(space->fix_tp, 8);
  EXPECT_EQ(space->fix_pp, 2);
  EXPECT_EQ(space->fix_dp, 4);
  EXPECT_EQ(space->fix_micro_batches, 16);
  EXPECT_EQ(space->fix_micro_batch, 2);
  EXPECT_TRUE(space->zero1);
  EXPECT_FALSE(space->data || space->zero2 || space->zero3);
  EXPECT_TRUE(space->sequence_parallel);
  EXPECT_FALSE(space->tensor_alone);
  EXPECT_TRUE(space->recompute_full);
  EXPECT_FALSE(space->recompute_none || space->recompute_selective);
  EXPECT_TRUE(space->gpipe);
  EXPECT_FALSE(space->one_f_one_b);
}

TEST(SpaceText, SchedulesAreDimensionsAndValues) {
  const auto wide = restrict_to_dimensions("dp,pp,interleaved,zb-h1,idle", Space{});
  ASSERT_TRUE(wide.has_value());
  EXPECT_TRUE(wide->interleaved && wide->zero_bubble && wide->idle && wide->one_f_one_b);
  const auto zero_bubble = fix_values("schedule=zb-h1", Space{});
  ASSERT_TRUE(zero_bubble.has_value());
  EXPECT_TRUE(zero_bubble->zero_bubble);
  EXPECT_FALSE(zero_bubble->one_f_one_b || zero_bubble->gpipe || zero_bubble->interleaved);
}

TEST(SpaceText, SchedulesInAVAreOnlyLookedAtWhenNamed) {
  EXPECT_FALSE(Space{}.zero_bubble_v || Space{}.dual_pipe_v);
  const auto wide = restrict_to_dimensions("usual,zb-v", Space{});
  ASSERT_TRUE(wide.has_value());
  EXPECT_TRUE(wide->zero_bubble_v && wide->one_f_one_b && wide->interleaved);
  EXPECT_FALSE(wide->dual_pipe_v);
  const auto fixed = fix_values("schedule=dualpipe-v,virtual_stages=2", Space{});
  ASSERT_TRUE(fixed.has_value()) << base::to_string(fixed.error());
  EXPECT_TRUE(fixed->dual_pipe_v);
  EXPECT_FALSE(fixed->zero_bubble_v || fixed->one_f_one_b || fixed->interleaved);
  EXPECT_FALSE(fix_values("schedule=zb-v,virtual_stages=3", Space{}).has_value());
  const auto two = fix_values("virtual_stages=2", *wide);
  EXPECT_TRUE(two->zero_bubble_v && two->interleaved);
  EXPECT_FALSE(fix_values("virtual_stages=3", *wide)->zero_bubble_v);
}

TEST(SpaceText, SeveralVirtualStagesAreInterleaved) {
  const auto four = fix_values("virtual_stages=4", Space{});
  ASSERT_TRUE(four.has_value());
  EXPECT_EQ(four->fix_virtual_stages, 4);
  EXPECT_TRUE(four->interleaved);
  EXPECT_FALSE(four->one_f_one_b || four->gpipe || four->zero_bubble);
  const auto one =
      fix_values("virtual_stages=1", *restrict_to_dimensions("pp,interleaved", Space{}));
  ASSERT_TRUE(one.has_value());
  EXPECT_TRUE(one->one_f_one_b);
  EXPECT_FALSE(one->interleaved);
  for (const char* text :
       {"virtual_stages=2,schedule=1f1b", "schedule=interleaved,virtual_stages=1"}) {
    const auto space = fix_values(text, Space{});
    ASSERT_FALSE(space.has_value()) << text;
    EXPECT_EQ(space.error().front().code, base::ErrorCode::kInconsistent);
  }
}

TEST(SpaceText, AFixedDegreeBringsItsDimensionBack) {
  const auto space = fix_values("tp=2,pp=4", *restrict_to_dimensions("dp", Space{}));
  ASSERT_TRUE(space.has_value());
  EXPECT_TRUE(space->tensor);
  EXPECT_TRUE(space->pipeline);
}

TEST(SpaceText, EveryFaultOfValuesIsReportedWithAHint) {
  const auto space = fix_values(
      "tp=0,microbatch=4,zero=4,sp=maybe,recompute=some,schedule=2f2b,pp,dp=2,dp=2,operators=norm,"
      "slices=65",
      Space{});
  ASSERT_FALSE(space.has_value());
  EXPECT_EQ(space.error().size(), 10U) << base::to_string(space.error());
  for (const base::Diagnostic& d : space.error()) {
    EXPECT_FALSE(d.hint.empty()) << d.message;
    EXPECT_EQ(base::exit_code({d}), 1);
  }
}

TEST(SpaceText, EveryWordHasHelp) {
  for (const SpaceWord& w : space_dimensions()) EXPECT_FALSE(w.help.empty()) << w.name;
  for (const SpaceWord& w : space_keys()) EXPECT_FALSE(w.help.empty() || w.range.empty()) << w.name;
}

TEST(SpaceText, ReasonsThatTellSomethingComeFirst) {
  const std::vector<Pruned> pruned{{"pp=1", "pp is fixed to 8", Reason::kFixed},
                                   {"a", "4 rows of vocabulary"},
                                   {"pp=2", "pp is fixed to 8", Reason::kFixed},
                                   {"b", "no strategy for a layer"}};
  const std::vector<Pruned> shown = telling_reasons(pruned, 3);
  ASSERT_EQ(shown.size(), 3U);
  EXPECT_EQ(shown[0].candidate, "a");
  EXPECT_EQ(shown[1].candidate, "b");
  EXPECT_EQ(shown[2].candidate, "pp=1");
}

// ---- what the fixed values leave of the tree ----

std::vector<plan::LayerStrategy> leaves(const char* fixed) {
  Space wide;
  wide.zero1 = wide.recompute_selective = true;
  const auto space = fix_values(fixed, wide);
  EXPECT_TRUE(space.has_value());
  return layer_strategies(
             tiny_model(4), *space,
             {.devices = 4, .sequence = 128, .micro_batch_sequences = 8, .micro_batches = 2})
      .leaves;
}

TEST(FixedValues, OneExpertDegreeSwitchesExpertParallelismOff) {
  const auto split = fix_values("ep=8", Space{}), whole = fix_values("ep=1", Space{});
  ASSERT_TRUE(split.has_value() && whole.has_value());
  EXPECT_EQ(split->fix_ep, 8);
  EXPECT_TRUE(split->expert);
  EXPECT_FALSE(whole->expert);
  EXPECT_FALSE(fix_values("ep=0", Space{}).has_value());
}

TEST(FixedValues, HoldForEveryLeafThatHasTheChoice) {
  const char* one = "tp=2,zero=1,sp=on,tensor_pieces=1,recompute=full";
  for (const plan::LayerStrategy& s : leaves(one))
    EXPECT_EQ(plan::to_string(s), "tp2 dp2 zero1 sp recompute=full");
  EXPECT_EQ(leaves(one).size(), 1U);
  for (const plan::LayerStrategy& s : leaves("tensor_pieces=2"))
    EXPECT_EQ(s.tensor_pieces, s.sequence_parallel ? 2 : 1);
  for (const plan::LayerStrategy& s : leaves("dp=4")) EXPECT_EQ(s.dp, 4);
  for (const plan::LayerStrategy& s : leaves("sp=off")) EXPECT_FALSE(s.sequence_parallel);
  for (const plan::LayerStrategy& s : leaves("micro_batch=4")) EXPECT_EQ(8 / s.dp, 4);
  for (const char* value : {"dp=4", "sp=off", "micro_batch=4", "sp=on", "recompute=none"})
    EXPECT_FALSE(leaves(value).empty()) << value;
  for (const plan::LayerStrategy& s : leaves("sp=on")) EXPECT_EQ(s.sequence_parallel, s.tp > 1);
  for (const plan::LayerStrategy& s : leaves("operators=mlp,slices=4")) {
    EXPECT_EQ(s.operators,
              s.zero == 3 ? plan::ShardedOperators::kMlp : plan::ShardedOperators::kAll);
    EXPECT_EQ(s.slices, s.zero == 3 ? 4 : 1);
  }
}

}  // namespace
}  // namespace orrery::search
