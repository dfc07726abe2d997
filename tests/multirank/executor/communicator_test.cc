// Collectives and transfers over MPI on data whose result is exact in any order: rank r contributes
// small integers.
#include "executor/transport/communicator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include "executor/transport/all_to_all.h"
#include "tests/multirank/executor/exact_collectives.h"
#include "tests/support/rank_body.h"

namespace orrery::executor::testing {
namespace {

void run_ranks(int ranks, const std::string& test) {
  const auto code = launch_local(ranks, tests::rank_arguments("Ranks." + test));
  ASSERT_TRUE(code) << base::to_string(code.error());
  EXPECT_EQ(*code, 0);
}

TEST(MpiCommunicator, CollectivesAreExactOverTwoFourAndThreeRanks) {
  for (const int ranks : {2, 4, 3}) run_ranks(ranks, "Collectives");
}
TEST(MpiCommunicator, ShiftsAndTradesReachTheirRanks) {
  for (const int ranks : {2, 3}) run_ranks(ranks, "Trades");
}
TEST(MpiCommunicator, GroupsOfTheSameWorldDoNotMix) { run_ranks(4, "Groups"); }
TEST(MpiCommunicator, TransfersKeepTheirOrderInEachLane) { run_ranks(2, "Transfers"); }

struct MpiRank : Rank {
  MpiRank() : Rank("mpi", {}) {}
};

RANK_BODY(Ranks, Collectives) {
  MpiRank w;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t rows : {2L, 40'000L})  // the larger one takes several chunks
      expect_exact_collectives(w, rows, type);
  }
  expect_exact_exchange(w);
}

RANK_BODY(Ranks, Trades) {
  MpiRank w;
  at::Tensor moved = at::empty({2, 3});
  ASSERT_TRUE(w.communicator->shift(w.all, at::full({2, 3}, static_cast<double>(w.r)), moved));
  EXPECT_TRUE(at::equal(moved, at::full({2, 3}, static_cast<double>((w.r + w.n - 1) % w.n))));

  // Everywhere [2 sequences, 3 n tokens, features of two sections, 2 n and n]; ranks hold tokens
  // first, then parts of both sections.
  const std::int64_t n = w.n;
  const at::Tensor whole = at::arange(2 * 3 * n * 3 * n).view({2, 3 * n, 3 * n}).to(at::kFloat);
  const at::Tensor tokens = whole.narrow(1, 3 * w.r, 3).contiguous();
  const at::Tensor features =
      at::cat({whole.narrow(2, 2 * w.r, 2), whole.narrow(2, 2 * n + w.r, 1)}, 2);
  plan::Op op;
  op.sections = {2 * n, n};
  op.dim = 2;
  at::Tensor by_features = at::empty({2, 3 * n, 3}), by_tokens = at::empty({2, 3, 3 * n});
  ASSERT_TRUE(all_to_all(*w.communicator, w.all, op, tokens, by_features));
  EXPECT_TRUE(at::equal(by_features, features));
  op.dim = 1;
  ASSERT_TRUE(all_to_all(*w.communicator, w.all, op, by_features, by_tokens));
  EXPECT_TRUE(at::equal(by_tokens, tokens));
}

RANK_BODY(Ranks, Groups) {
  MpiRank w;
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const plan::Group& group : {plan::Group{"tensor", 2, 1}, plan::Group{"data", 2, 2}}) {
      const int base = group.base(w.r);
      const std::vector<int> ranks{base, base + group.stride};
      const Channel c = *w.communicator->channel(ranks, plan::Stream::kTensor);
      EXPECT_EQ(c.index, group.index(w.r));
      at::Tensor t = at::full({5}, static_cast<double>(w.r));
      ASSERT_TRUE(w.communicator->all_reduce(c, t, plan::Reduce::kSum));
      EXPECT_TRUE(at::equal(t, at::full({5}, static_cast<double>(2 * base + group.stride))));
    }
  }
  const auto texts = w.communicator->gather("rank " + std::to_string(w.r));
  ASSERT_TRUE(texts);
  EXPECT_EQ(texts->size(), w.r == 0 ? 4U : 0U);
  if (w.r == 0) {
    EXPECT_EQ(texts->back(), "rank 3");
  }
  const auto text = w.communicator->broadcast(std::string(w.r == 0 ? "from the first" : ""));
  ASSERT_TRUE(text);
  EXPECT_EQ(*text, "from the first");
}

RANK_BODY(Ranks, Transfers) {
  MpiRank w;
  const int peer = 1 - w.r;
  constexpr std::int64_t kLarge = 1 << 20;  // far above any eager limit
  std::vector<std::unique_ptr<Transfer>> sends;
  for (int lane = 0; lane < 2; ++lane) {
    for (int i = 0; i < 3; ++i) {
      const at::Tensor t = at::full({i == 1 ? kLarge : 4}, 100.0 * w.r + 10 * lane + i);
      sends.push_back(
          *w.communicator->post({{.send = true, .peer = peer, .lane = lane, .tensor = t}}));
    }
  }
  for (const int lane : {1, 0}) {
    for (int i = 0; i < 3; ++i) {
      const at::Tensor t = at::empty({i == 1 ? kLarge : 4});
      const auto receive =
          w.communicator->post({{.send = false, .peer = peer, .lane = lane, .tensor = t}});
      ASSERT_TRUE((*receive)->wait());
      EXPECT_TRUE(at::equal(t, at::full_like(t, 100.0 * peer + 10 * lane + i)));
    }
  }
  for (auto& send : sends) ASSERT_TRUE(send->wait());
}

}  // namespace
}  // namespace orrery::executor::testing
