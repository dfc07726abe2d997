// Collectives and exchanges of the GPU transport on data whose result is exact in any order: rank r
// contributes small integers.
#include "executor/transport/communicator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "ranks_fixture.h"

namespace orrery::executor::testing {
namespace {

TEST(NcclCommunicator, CollectivesAreExactOverTwoAndThreeRanks) {
  for (const int ranks : {2, 3}) expect_success(run_ranks(ranks, "DISABLED_NcclRanks.Collectives"));
}
TEST(NcclCommunicator, BothDirectionsOfALaneSendBeforeTheyReceive) {
  expect_success(run_ranks(2, "DISABLED_NcclRanks.BothDirections"));
}
TEST(NcclCommunicator, TextsMayBeLongerThanTheStoreTakes) {
  expect_success(run_ranks(2, "DISABLED_NcclRanks.LongTexts"));
}

TEST(NcclCommunicator, AnAbortedWaitReturnsWithTheCause) {
  expect_success(run_ranks(2, "DISABLED_NcclRanks.AbortedWait",
                           {{"ORRERY_FAKE_FAULT", "1 ncclAllReduce 1 async"}}));
}

TEST(NcclCommunicator, ARankThatLeavesIsNotMissed) {
  expect_success(run_ranks(2, "DISABLED_NcclRanks.LeavesEarly"));
}

struct Rank {
  std::unique_ptr<Communicator> communicator;
  Channel all;
  int n = 1, r = 0;
  Rank() {
    auto made = make_communicator("nccl", detect_launch().value(), 0);
    if (!made) throw std::runtime_error(base::to_string(made.error()));
    communicator = *std::move(made);
    n = communicator->world_size();
    r = communicator->rank();
    std::vector<int> ranks(static_cast<std::size_t>(n));
    std::iota(ranks.begin(), ranks.end(), 0);
    all = communicator->channel(ranks, plan::Stream::kData).value();
  }
};

TEST(DISABLED_NcclRanks, Collectives) {
  Rank w;
  const int sum_of_ranks = w.n * (w.n - 1) / 2;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::vector<std::int64_t> shape{50, w.n * 2L, 3};
    const at::Tensor base = at::arange(300L * w.n, at::TensorOptions().dtype(at::kFloat))
                                .remainder(7)
                                .view(shape)
                                .to(type);
    at::Tensor t = base + w.r;
    ASSERT_TRUE(w.communicator->all_reduce(w.all, t, plan::Reduce::kSum));
    EXPECT_TRUE(at::equal(t, base * w.n + sum_of_ranks));
    t = base + w.r;
    ASSERT_TRUE(w.communicator->all_reduce(w.all, t, plan::Reduce::kMax));
    EXPECT_TRUE(at::equal(t, base + (w.n - 1)));
    at::Tensor part = at::empty({50, 2, 3}, base.options());
    ASSERT_TRUE(w.communicator->reduce_scatter(w.all, base + w.r, part, 1));
    EXPECT_TRUE(at::equal(part, (base * w.n + sum_of_ranks).narrow(1, w.r * 2, 2)));
    at::Tensor whole = at::empty(shape, base.options());
    ASSERT_TRUE(w.communicator->all_gather(w.all, part, whole, 1));
    EXPECT_TRUE(at::equal(whole, base * w.n + sum_of_ranks));
    at::Tensor flat = (base + w.r).view({-1});
    const std::int64_t length = flat.size(0) / w.n;
    at::Tensor own = flat.narrow(0, w.r * length, length);
    ASSERT_TRUE(w.communicator->reduce_scatter(w.all, flat, own, 0)) << "in place";
    ASSERT_TRUE(w.communicator->all_gather(w.all, own, flat, 0)) << "in place";
    EXPECT_TRUE(at::equal(flat, (base * w.n + sum_of_ranks).view({-1})));
    at::Tensor b = base + w.r;
    ASSERT_TRUE(w.communicator->broadcast(w.all, b, w.n - 1));
    EXPECT_TRUE(at::equal(b, base + (w.n - 1)));
  }
  const at::Tensor in = at::full({w.n, 3}, static_cast<double>(w.r));
  at::Tensor out = at::empty({w.n, 3});
  ASSERT_TRUE(w.communicator->all_to_all(w.all, in, out));
  EXPECT_TRUE(at::equal(out, at::arange(w.n).view({-1, 1}).expand({w.n, 3}).to(at::kFloat)));
  ASSERT_TRUE(w.communicator->shift(w.all, in, out));
  EXPECT_TRUE(at::equal(out, at::full_like(out, (w.r + w.n - 1) % w.n)));
}

// What interleaved stages on two ranks do: the wrap-around makes both send forward, messages above
// any buffer, before either receives.
TEST(DISABLED_NcclRanks, BothDirections) {
  Rank w;
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

TEST(DISABLED_NcclRanks, LeavesEarly) {
  Rank w;
  ASSERT_TRUE(w.communicator->barrier());
  if (w.r == 1) return;
  std::this_thread::sleep_for(std::chrono::seconds(7));  // more than a rank may be silent
  EXPECT_TRUE(w.communicator->healthy());
}

TEST(DISABLED_NcclRanks, AbortedWait) {
  Rank w;
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

TEST(DISABLED_NcclRanks, LongTexts) {
  Rank w;
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
