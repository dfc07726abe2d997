/// Hand-solved steps: costmodel/closed_form/step_times.h.
#include "costmodel/closed_form/step_times.h"

#include <gtest/gtest.h>

namespace orrery::costmodel {
namespace {

StageTimes stage(std::int64_t forward, std::int64_t backward, std::int64_t transfer = 0) {
  StageTimes t;
  t.forward_ps = forward;
  t.backward_ps = t.backward_sync_ps = backward;
  t.receive_forward_ps = t.receive_backward_ps = transfer;
  t.last_backward = {{1, backward, 0}};
  return t;
}
StepTimes step(std::vector<StageTimes> stages, std::int64_t micro_batches, int virtual_stages = 1) {
  StepTimes s;
  s.schedule = virtual_stages > 1 ? plan::Schedule::kInterleaved : plan::Schedule::k1F1B;
  s.virtual_stages = virtual_stages;
  s.ranks = static_cast<int>(stages.size()) / virtual_stages;
  s.micro_batches = micro_batches;
  s.stages = std::move(stages);
  return s;
}
std::int64_t passes(const StepTimes& s) {
  PassOrders orders;
  return pass_by_pass_ps(s, orders);
}

TEST(StepTimes, EqualStagesTakeWhatTheClosedFormSays) {
  const StepTimes s = step({stage(1, 2), stage(1, 2)}, 4);
  EXPECT_EQ(closed_form_ps(s), 15);
  EXPECT_EQ(passes(s), 15);
}

TEST(StepTimes, EveryCycleWaitsForATransfer) {
  StepTimes s = step({stage(1, 2), stage(1, 2)}, 4);
  s.stages[1].receive_forward_ps = s.stages[0].receive_backward_ps = 1;
  EXPECT_EQ(closed_form_ps(s), 17);
  EXPECT_EQ(passes(s), 19);
}

TEST(StepTimes, AShortStageHidesBehindALongOne) {
  const StepTimes s = step({stage(3, 6), stage(1, 2)}, 4);
  EXPECT_EQ(closed_form_ps(s), 39);
  EXPECT_EQ(passes(s), 36);
}

TEST(StepTimes, WithoutOverlapARankIsHeldWhileItReceives) {
  StepTimes s = step({stage(1, 2), stage(1, 2)}, 1);
  s.overlaps = false;
  s.stages[1].receive_forward_ps = s.stages[0].receive_backward_ps = 5;
  EXPECT_EQ(passes(s), 1 + 5 + 1 + 2 + 5 + 2);
}

// One rank, one micro-batch, two layers of 4 whose gradients take 3 each to reduce: the first
// reduction hides behind the second layer, the second stands alone, the update follows.
TEST(StepTimes, ReductionsRunBesideTheLayersBeforeThem) {
  StageTimes t = stage(1, 8);
  t.last_backward = {{2, 4, 3}};
  t.updates.add(1, {.update_ps = 2});
  EXPECT_EQ(passes(step({t}, 1)), 1 + 8 + 3 + 2);
  t.last_backward = {{2, 4, 6}};  // slower than the layers: one layer, then both
  EXPECT_EQ(passes(step({t}, 1)), 1 + 4 + 12 + 2);
}

// ZeRO-3 that reduces after every micro-batch: the gather for the next pass stands behind it.
TEST(StepTimes, AGatherWaitsForTheReductionBeforeIt) {
  StageTimes t = stage(10, 20);
  t.forward_ends = {2, 10, 0};
  t.backward_ends = {2, 20, 3};
  // Gathers of 2 at the start; F, B, then 3 + 2 before the next F; its B has been gathered beside.
  EXPECT_EQ(passes(step({t}, 2)), 2 + 10 + 20 + 3 + 2 + 10 + 20);
}

// What is extrapolated is what is run: many micro-batches cost one cycle more each.
// One layer of 10 forward whose parameters take 8 to gather and slow it by 2, zeroing takes 5.
TEST(StepTimes, GathersSlowTheFirstForwardBehindTheZeroing) {
  StageTimes t = stage(10, 20);
  t.zero_ps = 5;
  t.add_first_forward(1, 10, 8, 2);
  EXPECT_EQ(passes(step({t}, 1)), 5 + 10 + 2 + 20);
}

// The second stage begins when its parameters are there, and meets no gather.
TEST(StepTimes, AStageThatBeginsBehindTheGathersIsNotSlowed) {
  StageTimes t = stage(10, 20);
  t.add_first_forward(1, 10, 8, 2);
  EXPECT_EQ(passes(step({t, t}, 1)), 12 + 10 + 20 + 20);
}

// Updated parameters of 30 come first on the stream; then 4 for the sharded layer of 10.
TEST(StepTimes, ShardedWeightsAreGatheredBehindTheUpdatedOnes) {
  StageTimes t = stage(10, 20);
  t.gathered_ps = 30;
  t.forward_ends = {.gather_ps = 4, .layer_ps = 10, .reduction_ps = 0};
  EXPECT_EQ(passes(step({t}, 1)), 34 + 10 + 20);
}

// Two layers of 10, reductions of 6; side by side each loses 1. The second layer ends at 21; the
// first reduction runs from 10 to 17, the second from 21 to 27.
TEST(StepTimes, ReductionsAndLayersSlowEachOther) {
  StageTimes t = stage(3, 20);
  t.last_backward = {{2, 10, 6, 1}};
  EXPECT_EQ(passes(step({t}, 1)), 3 + 27);
}

TEST(StepTimes, ManyMicroBatchesAreSettled) {
  const std::vector<StageTimes> stages{stage(3, 5, 1), stage(4, 6, 1), stage(2, 7, 1),
                                       stage(3, 5, 1)};
  const auto at = [&](std::int64_t m) { return passes(step(stages, m)); };
  EXPECT_EQ(at(400) - at(396), at(200) - at(196));
  EXPECT_GE(at(400) - at(396), 4 * 10);
}

TEST(StepTimes, InterleavedStagesShortenTheBubble) {
  const StepTimes whole = step({stage(2, 4), stage(2, 4)}, 4);
  const StepTimes halves = step({stage(1, 2), stage(1, 2), stage(1, 2), stage(1, 2)}, 4, 2);
  EXPECT_EQ(passes(whole), 30);
  EXPECT_EQ(passes(halves), 27);  // (m + (p - 1) / v) (F + B)
}

// Copies of 3 to and fro, updates of 2; by hand: in 3, 6, 11, 14, updated 5, 8, 13, 16, out 8, 11,
// 16, 19.
TEST(UpdateTimes, WorkedExample) {
  UpdateTimes both, in_turn, mixed;
  both.add(4, {.in_ps = 3, .out_ps = 3, .update_ps = 2, .bytes = 1});
  EXPECT_EQ(both.ps(true), 19);
  EXPECT_EQ(both.ps(false), 32);
  // Reduced 1, 7, 13, 19; in 4, 10, 16, 22; updated 6, 12, 18, 24; the last is out at 27.
  in_turn.add(4, {.in_ps = 3, .out_ps = 3, .update_ps = 2, .front_ps = 1, .bytes = 1});
  EXPECT_EQ(in_turn.ps(true), 27);
  // What stays on the device is updated meanwhile: until 10, and its neighbour's copy ends at 3.
  mixed.add(1, {.update_ps = 10});
  mixed.add(1, {.in_ps = 3, .out_ps = 3, .update_ps = 2, .bytes = 1});
  EXPECT_EQ(mixed.ps(true), 15);
}

}  // namespace
}  // namespace orrery::costmodel
