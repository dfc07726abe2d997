// Collectives and exchanges of the GPU transport on data whose result is exact in any order: rank r
// contributes small integers.
#include "executor/transport/communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "ranks_fixture.h"
#include "tests/multirank/executor/exact_collectives.h"
#include "tests/support/rank_body.h"

namespace orrery::executor::testing {
namespace {

TEST(NcclCommunicator, CollectivesAreExactOverTwoAndThreeRanks) {
  for (const int ranks : {2, 3}) expect_success(run_ranks(ranks, "NcclRanks.Collectives"));
}
TEST(NcclCommunicator, BothDirectionsOfALaneSendBeforeTheyReceive) {
  expect_success(run_ranks(2, "NcclRanks.BothDirections"));
}
TEST(NcclCommunicator, TextsMayBeLongerThanTheStoreTakes) {
  expect_success(run_ranks(2, "NcclRanks.LongTexts"));
}

TEST(NcclCommunicator, AnAbortedWaitReturnsWithTheCause) {
  expect_success(
      run_ranks(2, "NcclRanks.AbortedWait", {{"ORRERY_FAKE_FAULT", "1 ncclAllReduce 1 async"}}));
}

TEST(NcclCommunicator, ARankThatLeavesIsNotMissed) {
  expect_success(run_ranks(2, "NcclRanks.LeavesEarly"));
}

struct NcclRank : Rank {
  NcclRank() : Rank("nccl", detect_launch().value()) {}
};

RANK_BODY(NcclRanks, Collectives) {
  NcclRank w;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    expect_exact_collectives(w, 50, type);
  expect_exact_exchange(w);
  const at::Tensor in = at::full({w.n, 3}, static_cast<double>(w.r));
  at::Tensor out = at::empty({w.n, 3});
  ASSERT_TRUE(w.communicator->shift(w.all, in, out));
  EXPECT_TRUE(at::equal(out, at::full_like(out, (w.r + w.n - 1) % w.n)));
}

// What interleaved stages on two ranks do: the wrap-around makes both send forward, messages above
// any buffer, before either receives.
RANK_BODY(NcclRanks, BothDirections) {
  NcclRank w;
  const int peer = 1 - w.r;
  constexpr std::int64_t kLarge = 1 << 16;
  Streams& streams = *w.communicator->streams();
  for (const bool upward : {true, false})
    ASSERT_TRUE(w.communicator->open_pair(peer, 3, upward == (w.r == 0)));
  const at::Tensor sent = at::full({kLarge}, 10.0 + w.r), received = at::empty({kLarge});
  ASSERT_TRUE(streams.enter(plan::Stream::kForwardSend, {}, false));
  ASSERT_TRUE(w.communicator->post({{.send = true, .peer = peer, .lane = 3, .tensor = sent}}));
  ASSERT_TRUE(streams.enter(plan::Stream::kForwardReceive, {}, false));
  ASSERT_TRUE(w.communicator->post({{.send = false, .peer = peer, .lane = 3, .tensor = received}}));
  ASSERT_TRUE(streams.finish());
  ASSERT_TRUE(w.communicator->healthy());
  EXPECT_TRUE(at::equal(received, at::full_like(received, 10.0 + peer)));
  // and both legs of one exchange at once
  ASSERT_TRUE(w.communicator->post({{.send = true, .peer = peer, .lane = 3, .tensor = sent},
                                    {.send = false, .peer = peer, .lane = 3, .tensor = received}}));
  EXPECT_TRUE(at::equal(received, at::full_like(received, 10.0 + peer)));
}

RANK_BODY(NcclRanks, LeavesEarly) {
  NcclRank w;
  ASSERT_TRUE(w.communicator->barrier());
  if (w.r == 1) return;
  std::this_thread::sleep_for(std::chrono::seconds(7));  // more than a rank may be silent
  EXPECT_TRUE(w.communicator->healthy());
}

RANK_BODY(NcclRanks, AbortedWait) {
  NcclRank w;
  Streams& streams = *w.communicator->streams();
  at::Tensor t = at::full({5}, 1.0);
  ASSERT_TRUE(streams.enter(plan::Stream::kData, {}, false));
  ASSERT_TRUE(w.communicator->all_reduce(w.all, t, plan::Reduce::kSum));
  ASSERT_TRUE(streams.finish()) << "whoever waits comes back";
  const auto healthy = w.communicator->healthy();
  ASSERT_FALSE(healthy);
  EXPECT_EQ(healthy.error().front().code, base::ErrorCode::kCollective);
  EXPECT_TRUE(healthy.error().front().message.starts_with("NCCL failed: remote process exited"));
  const auto later = w.communicator->all_reduce(w.all, t, plan::Reduce::kSum);
  ASSERT_FALSE(later) << "the communicator is gone";
  w.communicator->abort(3);
}

RANK_BODY(NcclRanks, LongTexts) {
  NcclRank w;
  std::string text(20 << 20, static_cast<char>('a' + w.r));
  text.back() = ';';
  const auto texts = w.communicator->gather(text);
  ASSERT_TRUE(texts) << base::to_string(texts.error());
  if (w.r == 0) {
    ASSERT_EQ(texts->size(), 2U);
    EXPECT_EQ(texts->back().size(), text.size());
    EXPECT_EQ(texts->back().front(), 'b');
    EXPECT_EQ(texts->back().back(), ';');
  }
  const auto heard = w.communicator->broadcast(text);
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->size(), text.size());
  EXPECT_EQ(heard->front(), 'a');
}

}  // namespace
}  // namespace orrery::executor::testing
