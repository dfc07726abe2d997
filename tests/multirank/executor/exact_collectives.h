#pragma once
/// Collectives on data whose result is exact in any order: rank r contributes small integers.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <numeric>

#include "executor/transport/communicator.h"

namespace orrery::executor::testing {

/// This process as one of its job, with a channel over all of them.
struct Rank {
  std::unique_ptr<Communicator> communicator;
  Channel all;
  int n = 1, r = 0;
  Rank(const std::string& backend, const Launch& launch) {
    auto made = make_communicator(backend, launch, 0);
    if (!made) throw std::runtime_error(base::to_string(made.error()));
    communicator = *std::move(made);
    n = communicator->world_size();
    r = communicator->rank();
    std::vector<int> ranks(static_cast<std::size_t>(n));
    std::iota(ranks.begin(), ranks.end(), 0);
    all = communicator->channel(ranks, plan::Stream::kData).value();
  }
};

inline at::Tensor numbered(at::IntArrayRef shape, at::ScalarType type) {
  std::int64_t n = 1;
  for (const auto d : shape) n *= d;
  return at::arange(n, at::TensorOptions().dtype(at::kFloat)).remainder(7).view(shape).to(type);
}

/// Of [rows, 2 n, 3] elements.
inline void expect_exact_collectives(Rank& w, std::int64_t rows, at::ScalarType type) {
  const int sum_of_ranks = w.n * (w.n - 1) / 2;
  const std::vector<std::int64_t> shape{rows, w.n * 2L, 3};
  const at::Tensor base = numbered(shape, type);
  at::Tensor t = base + w.r;
  ASSERT_TRUE(w.communicator->all_reduce(w.all, t, plan::Reduce::kSum));
  EXPECT_TRUE(at::equal(t, base * w.n + sum_of_ranks));
  t = base + w.r;
  ASSERT_TRUE(w.communicator->all_reduce(w.all, t, plan::Reduce::kMax));
  EXPECT_TRUE(at::equal(t, base + (w.n - 1)));

  const at::Tensor mine = base + w.r;
  at::Tensor part = at::empty({rows, 2, 3}, base.options());
  ASSERT_TRUE(w.communicator->reduce_scatter(w.all, mine, part, 1));
  EXPECT_TRUE(at::equal(part, (base * w.n + sum_of_ranks).narrow(1, w.r * 2, 2)));
  EXPECT_TRUE(at::equal(mine, base + w.r)) << "the input stands";
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

inline void expect_exact_exchange(Rank& w) {
  const at::Tensor in = at::full({w.n, 3}, static_cast<double>(w.r));
  at::Tensor out = at::empty({w.n, 3});
  ASSERT_TRUE(w.communicator->all_to_all(w.all, in, out));
  EXPECT_TRUE(at::equal(out, at::arange(w.n).view({-1, 1}).expand({w.n, 3}).to(at::kFloat)));
}

}  // namespace orrery::executor::testing
