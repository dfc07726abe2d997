/// What a page draws of a step, on hand-computed ones.

#include "sim/report/picture.h"

#include <gtest/gtest.h>

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

SimReport drawn(const StepMaker& m, int devices) {
  return simulate(m.program, m.cost(star(devices, 1'000'000'000, 0)), {.picture = true}).value();
}

// Two micro-batches forward, then backward: passes of one micro-batch are one block, and what waits
// in between is not busy.
TEST(Picture, PassesOfAMicroBatchAreOneBlock) {
  const StepMaker m = testing::pipeline({.stages = 2, .micro_batches = 2, .one_f_one_b = false});
  const Picture p = drawn(m, 2).picture;
  ASSERT_EQ(p.stages.size(), 2U);
  std::vector<Picture::Block> compute;
  for (const Picture::Block& b : p.stages[1].blocks)
    if (b.stream == Stream::kCompute) compute.push_back(b);
  ASSERT_EQ(compute.size(), 4U);
  EXPECT_EQ(compute[0].micro_batch, 0);
  EXPECT_EQ(compute[1].micro_batch, 1);
  EXPECT_EQ(compute[0].start_ps, kMicrosecond);
  EXPECT_EQ(compute[0].end_ps, 2 * kMicrosecond);
  EXPECT_EQ(compute[0].busy_ps, kMicrosecond);
  EXPECT_EQ(compute[3].end_ps, 7 * kMicrosecond);
}

// A stash of 4000 bytes is alive from the forward's start to the backward's end, 1000 bytes of a
// message between.
TEST(Picture, MemoryRisesAndFallsWithItsInstances) {
  StepMaker m(2);
  m.stages(1, 2);
  const auto stash = m.buffer("stash", 4000), message = m.buffer("message", 1000);
  auto reduce = m.all_reduce("reduce", m.group(2, 1), 1000, Stream::kData);
  reduce.updates = {message};
  m.program.buffers[message.buffer].category = plan::BufferCategory::kCommunication;
  m.program.buffers[stash.buffer].category = plan::BufferCategory::kActivation;
  m.run_once(0, {m.compute("before", 2 * kMicrosecond),
                 writing(m.compute("forward", 2 * kMicrosecond), {stash, message}), reduce,
                 freeing(reading(m.compute("backward", 4 * kMicrosecond), {stash}), {stash}),
                 freeing(reading(m.compute("after", 2 * kMicrosecond), {message}), {message})});
  const Picture p = drawn(m, 2).picture;
  const auto at = [&](std::int64_t ps) {
    Picture::Memory last;
    for (const Picture::Memory& sample : p.stages[0].memory)
      if (sample.at_ps <= ps) last = sample;
    return std::pair(last.bytes[static_cast<std::size_t>(plan::BufferCategory::kActivation)],
                     last.bytes[static_cast<std::size_t>(plan::BufferCategory::kCommunication)]);
  };
  EXPECT_EQ(at(kMicrosecond), std::pair(0L, 0L));
  EXPECT_EQ(at(3 * kMicrosecond), std::pair(4000L, 1000L));
  EXPECT_EQ(at(7 * kMicrosecond), std::pair(4000L, 1000L));
  EXPECT_EQ(at(9 * kMicrosecond), std::pair(0L, 1000L));
}

// A ring all-reduce of 60 kB over 2 ranks sends 60 kB over every one of the four directed links.
TEST(Picture, LinksCarryWhatTheTransfersSend) {
  StepMaker m(2);
  m.stages(1, 2);
  m.run_once(
      0, {m.all_reduce("one", m.group(2, 1), 60'000), m.all_reduce("two", m.group(2, 1), 20'000)});
  const Picture p = drawn(m, 2).picture;
  ASSERT_EQ(p.links.size(), 4U);
  for (const Picture::Link& l : p.links) EXPECT_EQ(l.bytes, 80'000);
}

}  // namespace
}  // namespace orrery::sim
