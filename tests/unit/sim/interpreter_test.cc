/// The rules of plan/program/program.h on the clock, with hand-computed times.

#include "sim/step/interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/sim/step_maker.h"

namespace orrery::sim {
namespace {

using plan::Stream;
using testing::freeing;
using testing::kMicrosecond;
using testing::reading;
using testing::star;
using testing::StepMaker;
using testing::writing;

/// One rank pair, compute of 100 us beside an all-reduce of 60 us on the data stream.
StepMaker overlapping(double slowdown, bool overlaps) {
  StepMaker m(2);
  m.stages(1, 2);
  m.profile.overlap_slowdown = slowdown;
  m.profile.overlaps = overlaps;
  m.run_once(0, {m.compute("long", 100 * kMicrosecond),
                 m.all_reduce("gradients", m.group(2, 1), 60'000, Stream::kData)});
  return m;
}

TEST(Overlap, IsFreeWithoutSlowdown) {
  const SimReport r = overlapping(1.0, true).run(star(2, 1'000'000'000, 0));
  EXPECT_EQ(r.step_time_ps, 100 * kMicrosecond);
  EXPECT_EQ(r.stages[0].exposed_data_ps, 0);
}

// Both sides run 1.3 times slower while they overlap: 1.3 * 60 = 78 us for the shorter, then 100 -
// 60 alone.
TEST(Overlap, SlowsBothSidesWhileItLasts) {
  const SimReport r = overlapping(1.3, true).run(star(2, 1'000'000'000, 0), true);
  EXPECT_EQ(r.timeline.spans[1].duration_ps, 78 * kMicrosecond);
  EXPECT_EQ(r.step_time_ps, 118 * kMicrosecond);
  EXPECT_EQ(r.stages[0].busy_compute_ps, 118 * kMicrosecond);
}

// One thread: 100 then 60.
TEST(Overlap, IsSerialOnOneThread) {
  const SimReport r = overlapping(1.3, false).run(star(2, 1'000'000'000, 0));
  EXPECT_EQ(r.step_time_ps, 160 * kMicrosecond);
  EXPECT_EQ(r.stages[0].exposed_data_ps, 60 * kMicrosecond);
}

// A message is slow while either end computes: the sender is idle, the receiver computes for its
// first half.
//   message of 10 us alone, receiver computes 10 us, k = 2: both need 2 x to overlap, so at 20 us
//   both are done.
TEST(Overlap, SlowsAMessageOnBehalfOfEitherEnd) {
  StepMaker m(2);
  m.stages(2, 1);
  m.profile.overlap_slowdown = 2.0;
  const auto x = m.buffer("x", 10'000);
  m.run_once(0, {m.exchange("send", Stream::kForwardSend, {{true, 1, x}})});
  m.run_once(1, {m.exchange("receive", Stream::kForwardReceive, {{false, -1, x}}),
                 m.compute("other", 10 * kMicrosecond)});
  EXPECT_EQ(m.run(star(2, 1'000'000'000, 0)).step_time_ps, 20 * kMicrosecond);
}

TEST(Streams, RunInOrderAndWaitForTheirData) {
  StepMaker m(2);
  m.stages(1, 2);
  const auto g = m.buffer("g", 4000);
  const auto pair = m.group(2, 1);
  auto reduce = m.all_reduce("reduce", pair, 4000, Stream::kData);
  reduce.updates = {g};
  m.run_once(0, {writing(m.compute("make", 2 * kMicrosecond), {g}), reduce,
                 m.compute("beside", 3 * kMicrosecond),
                 freeing(reading(m.compute("use", kMicrosecond), {g}), {g})});
  const SimReport r = m.run(star(2, 1'000'000'000, 0), true);
  const auto& s = r.timeline.spans;
  // reduce waits for make; takes 4 us
  EXPECT_EQ(s[1].start_ps, 2 * kMicrosecond);
  EXPECT_EQ(s[2].start_ps, 2 * kMicrosecond);            // beside runs at once
  EXPECT_EQ(s[3].start_ps, 6 * kMicrosecond);            // use waits for reduce
  EXPECT_EQ(r.stages[0].exposed_data_ps, kMicrosecond);  // [5, 6]
  EXPECT_EQ(r.stages[0].busy_compute_ps, 6 * kMicrosecond);
  EXPECT_EQ(r.step_time_ps, 7 * kMicrosecond);
}

/// Rows to experts and back around `ps` of computation, on two ranks.
StepMaker exchanging(std::int64_t ps, bool overlaps) {
  StepMaker m(2);
  m.stages(1, 2);
  m.profile.framework = model::Framework{.name = "made up", .expert_overlap = overlaps};
  const auto pair = m.group(2, 1);
  const auto made = m.buffer("made", 4000), rows = m.buffer("rows", 4000),
             used = m.buffer("used", 4000), back = m.buffer("back", 4000);
  const auto exchange = [&](const char* name, plan::BufferRef from, plan::BufferRef to) {
    plan::Op op = m.all_reduce(name, pair, 8000);
    op.collective = plan::Collective::kAllToAll;
    model::SegmentShape dispatch;
    dispatch.kind = model::SegmentKind::kDispatch;
    op.segment = m.program.segments.push_back(dispatch);
    return writing(reading(op, {from}), {to});
  };
  m.run_once(0, {writing(m.compute("make", 2 * kMicrosecond), {made}), exchange("out", made, rows),
                 writing(reading(m.compute("use", ps), {rows}), {used}), exchange("in", used, back),
                 reading(m.compute("end", kMicrosecond), {back})});
  return m;
}

// What reads rows goes on when they are sent, as if another micro-batch filled the time: 2, 10 and
// 1 us, the exchanges of 4 us beside the last two.
TEST(Streams, ExchangesOfExpertsHoldNobodyWhereAnotherMicroBatchComputes) {
  const SimReport waits = exchanging(10 * kMicrosecond, false).run(star(2, 1'000'000'000, 0), true);
  const std::int64_t each_ps = waits.timeline.spans[1].duration_ps;
  EXPECT_EQ(each_ps, 4 * kMicrosecond);
  EXPECT_EQ(waits.step_time_ps, 13 * kMicrosecond + 2 * each_ps);
  const SimReport r = exchanging(10 * kMicrosecond, true).run(star(2, 1'000'000'000, 0), true);
  const auto& s = r.timeline.spans;
  EXPECT_EQ(s[2].start_ps, 2 * kMicrosecond);
  EXPECT_EQ(s[3].start_ps, 12 * kMicrosecond);
  EXPECT_EQ(s[4].start_ps, 12 * kMicrosecond);
  EXPECT_EQ(r.step_time_ps, 12 * kMicrosecond + each_ps);
}

// One exchange at a time: where computation is shorter, the next waits for the one before.
TEST(Streams, AnExchangeOfExpertsWaitsForTheOneBefore) {
  const SimReport r = exchanging(kMicrosecond, true).run(star(2, 1'000'000'000, 0), true);
  const auto& s = r.timeline.spans;
  EXPECT_EQ(s[2].start_ps, 2 * kMicrosecond);
  EXPECT_EQ(s[3].start_ps, 6 * kMicrosecond);
  EXPECT_EQ(s[4].start_ps, 6 * kMicrosecond);
  EXPECT_EQ(r.step_time_ps, 10 * kMicrosecond);
}

TEST(Streams, AnExchangePostsAllItsLegsAtOnce) {
  StepMaker m(2);
  m.stages(2, 1);
  const auto mine = m.buffer("mine", 1000), theirs = m.buffer("theirs", 1000);
  m.run_once(0, {m.exchange("swap", Stream::kTensor, {{true, 1, mine}, {false, 1, theirs}})});
  m.run_once(1, {m.exchange("swap", Stream::kTensor, {{true, -1, mine}, {false, -1, theirs}})});
  EXPECT_EQ(m.run(star(2, 1'000'000'000, 0)).step_time_ps, kMicrosecond);  // full duplex
}

TEST(Streams, OneThreadPostsASendAndGoesOn) {
  StepMaker m(2);
  m.stages(2, 1);
  m.profile.overlaps = false;
  const auto x = m.buffer("x", 1000);
  m.run_once(0, {m.exchange("send", Stream::kForwardSend, {{true, 1, x}}),
                 m.compute("next", 5 * kMicrosecond)});
  m.run_once(1, {m.compute("before", 2 * kMicrosecond),
                 m.exchange("receive", Stream::kForwardReceive, {{false, -1, x}}),
                 m.compute("after", kMicrosecond)});
  const SimReport r = m.run(star(2, 1'000'000'000, 0), true);
  const auto& s = r.timeline.spans;
  EXPECT_EQ(s[1].start_ps, 0);                 // next does not wait for the send
  EXPECT_EQ(s[0].start_ps, 2 * kMicrosecond);  // which meets its receive later
  EXPECT_EQ(s[4].start_ps, 3 * kMicrosecond);  // after the blocking receive
  EXPECT_EQ(r.step_time_ps, 5 * kMicrosecond);
}

TEST(Streams, OneThreadWaitsForTheEarlierSendOfAStream) {
  StepMaker m(2);
  m.stages(2, 1);
  m.profile.overlaps = false;
  const auto x = m.buffer("x", 1000), y = m.buffer("y", 1000);
  m.run_once(0, {m.exchange("first", Stream::kForwardSend, {{true, 1, x}}),
                 m.exchange("second", Stream::kForwardSend, {{true, 1, y}}),
                 m.compute("next", kMicrosecond)});
  m.run_once(1, {m.compute("before", 4 * kMicrosecond),
                 m.exchange("receive x", Stream::kForwardReceive, {{false, -1, x}}),
                 m.exchange("receive y", Stream::kForwardReceive, {{false, -1, y}})});
  const SimReport r = m.run(star(2, 1'000'000'000, 0), true);
  // the second send could be posted when the first had ended
  EXPECT_EQ(r.timeline.spans[2].start_ps, 5 * kMicrosecond);
}

/// First and last of `stages` stages of `count` ranks each add up one buffer, the last after 7 us
/// of computing.
SimReport tied(int stages, int count) {
  StepMaker m(stages * count);
  m.stages(stages, count);
  const auto g = m.buffer("g", 1000);
  auto reduce = m.all_reduce("tied", m.group(2, (stages - 1) * count), 1000, Stream::kData);
  reduce.updates = {g};
  m.run_once(0, {reduce});
  m.run_once(stages - 1, {writing(m.compute("late", 7 * kMicrosecond), {g}), reduce});
  return m.run(star(stages * count, 1'000'000'000, 0), true);
}

TEST(Collectives, BeyondAClassWaitForEveryClass) {
  for (const auto& [stages, count] :
       {std::pair(2, 2), std::pair(2, 1), std::pair(4, 1), std::pair(3, 4)}) {
    const SimReport r = tied(stages, count);
    EXPECT_EQ(r.timeline.spans[0].start_ps, 7 * kMicrosecond);
    EXPECT_EQ(r.timeline.spans[0].duration_ps, kMicrosecond);  // 2 * 1/2 * 1000 B at 1 GB/s
    EXPECT_EQ(r.stages[0].idle_ps, 7 * kMicrosecond);          // waiting is not communication
    EXPECT_EQ(r.stages[0].exposed_data_ps, kMicrosecond);
    EXPECT_EQ(r.step_time_ps, 8 * kMicrosecond);
  }
}

TEST(Deadlock, NamesWhoWaitsForWhom) {
  StepMaker m(2);
  m.stages(2, 1);
  const auto x = m.buffer("x", 1000), y = m.buffer("y", 1000);
  m.run_once(0, {m.exchange("receive x", Stream::kForwardReceive, {{false, 1, x}}),
                 reading(m.compute("use x", kMicrosecond), {x})});
  m.run_once(1, {m.exchange("receive y", Stream::kForwardReceive, {{false, -1, y}})});
  const auto r = simulate(m.program, m.cost(star(2, 1'000'000'000, 0)));
  ASSERT_FALSE(r.has_value());
  EXPECT_EQ(r.error()[0].code, base::ErrorCode::kInconsistent);
  const std::string text = base::to_string(r.error());
  EXPECT_THAT(text, ::testing::HasSubstr("cannot progress"));
  EXPECT_THAT(text,
              ::testing::HasSubstr(
                  "'receive x' (layer 0, micro-batch 0) waits for the matching send of stage 1"));
  EXPECT_THAT(text, ::testing::HasSubstr("'use x' (layer 0, micro-batch 0) waits for stage 0"));
}

TEST(WrongInput, PeerOutsideTheWorldIsADiagnostic) {
  StepMaker m(2);
  m.stages(2, 1);
  const auto x = m.buffer("x", 1000);
  m.run_once(1, {m.exchange("send", Stream::kForwardSend, {{true, 1, x}})});
  const auto r = simulate(m.program, m.cost(star(2, 1'000'000'000, 0)));
  ASSERT_FALSE(r.has_value());
  EXPECT_THAT(base::to_string(r.error()), ::testing::HasSubstr("outside the world"));
}

TEST(WrongInput, TooSmallAClusterIsADiagnostic) {
  StepMaker m(4);
  m.stages(1, 4);
  const auto r = simulate(m.program, m.cost(star(2, 1'000'000'000, 0)));
  ASSERT_FALSE(r.has_value());
  EXPECT_THAT(base::to_string(r.error()), ::testing::HasSubstr("needs 4 devices"));
}

TEST(Memory, FreesWhatAnotherStreamStillSendsOnlyAfterwards) {
  StepMaker m(2);
  m.stages(2, 1);
  const auto x = m.buffer("x", 10'000), z = m.buffer("z", 500);
  auto use = freeing(reading(m.compute("use", kMicrosecond), {x}), {x});
  m.run_once(0, {writing(m.compute("make", kMicrosecond), {x}),
                 m.exchange("send", Stream::kForwardSend, {{true, 1, x}}), use,
                 freeing(writing(m.compute("later", kMicrosecond), {z}), {z})});
  m.run_once(1, {freeing(m.exchange("receive", Stream::kForwardReceive, {{false, -1, x}}), {x})});
  // The send takes 10 us: x stays beside z although its last compute reader ended at 2 us.
  const SimReport r = m.run(star(2, 1'000'000'000, 0), true);
  EXPECT_EQ(r.stages[0].timeline_peak_bytes, 10'500);
  const auto& samples = r.timeline.memory;
  ASSERT_FALSE(samples.empty());
  std::int64_t last_zero = -1;
  for (const auto& s : samples) {
    if (s.rank == 0 && s.bytes == 0) last_zero = s.at_ps;
  }
  EXPECT_EQ(last_zero, 11 * kMicrosecond);
}

TEST(Fingerprint, IsEqualForEqualStepsAndOnlyForThem) {
  const auto topology = star(4, 1'000'000'000, 10);
  const auto a =
      testing::pipeline({.stages = 4, .micro_batches = 8, .message_bytes = 1000}).run(topology);
  const auto b = testing::pipeline({.stages = 4, .micro_batches = 8, .message_bytes = 1000})
                     .run(topology, true);
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  EXPECT_EQ(a.events, b.events);
  const auto c =
      testing::pipeline(
          {.stages = 4, .micro_batches = 8, .forward_ps = kMicrosecond + 1, .message_bytes = 1000})
          .run(topology);
  EXPECT_NE(a.fingerprint, c.fingerprint);
}

TEST(Accounts, AddUpToTheStepOnEveryStage) {
  auto maker = testing::pipeline({.stages = 4, .micro_batches = 6, .message_bytes = 700});
  maker.profile.overlap_slowdown = 1.21;
  const SimReport r = maker.run(star(4, 1'000'000'000, 100));
  for (const StageReport& s : r.stages) {
    EXPECT_EQ(s.busy_compute_ps + s.exposed_tensor_ps + s.exposed_data_ps + s.exposed_pipeline_ps +
                  s.idle_ps,
              r.step_time_ps);
    EXPECT_EQ(std::accumulate(s.parts.begin(), s.parts.end(), std::int64_t{0}), r.step_time_ps);
  }
}

std::int64_t part(const StageReport& s, TimePart p) { return s.parts[static_cast<std::size_t>(p)]; }

// Forward 5 us, replay 3, backward 7, then tensor 4 us, a context all-to-all 6 us, experts 8 us,
// nothing hides them.
TEST(Accounts, NameWhatTheTimeWentInto) {
  StepMaker m(2);
  m.stages(1, 2);
  const auto named = [&](const char* name) { return m.program.groups.push_back({name, 2, 1}); };
  auto replay = m.compute("replay", 3 * kMicrosecond);
  replay.recomputed = true;
  auto backward = m.compute("backward", 7 * kMicrosecond);
  backward.phase = plan::Phase::kB;
  m.profile.operators.back().phase = plan::Phase::kB;
  m.profile.operators.back().shape.kind = m.program.segments[backward.segment].kind =
      model::SegmentKind::kActivation;
  m.profile.overlaps = false;
  m.run_once(0,
             {m.compute("forward", 5 * kMicrosecond), replay, backward,
              m.all_reduce("t", named("tensor"), 4000), m.all_reduce("c", named("context"), 6000),
              m.all_reduce("e", named("expert"), 8000),
              m.all_reduce("d", named("data"), 2000, Stream::kData)});
  const SimReport r = m.run(star(2, 1'000'000'000, 0));
  const StageReport& s = r.stages[0];
  EXPECT_EQ(part(s, TimePart::kForward), 5 * kMicrosecond);
  EXPECT_EQ(part(s, TimePart::kRecompute), 3 * kMicrosecond);
  EXPECT_EQ(part(s, TimePart::kBackward), 7 * kMicrosecond);
  EXPECT_EQ(part(s, TimePart::kTensor), 4 * kMicrosecond);
  EXPECT_EQ(part(s, TimePart::kContext), 6 * kMicrosecond);
  EXPECT_EQ(part(s, TimePart::kExpert), 8 * kMicrosecond);
  EXPECT_EQ(part(s, TimePart::kData), 2 * kMicrosecond);
  EXPECT_EQ(part(s, TimePart::kBubble), 0);
  EXPECT_EQ(r.step_time_ps, 35 * kMicrosecond);
}

}  // namespace
}  // namespace orrery::sim
