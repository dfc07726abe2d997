#include "executor/state/state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace orrery::executor {
namespace {

/// A unit with a matrix split by rows (7 rows, padded to 4 a rank on 2 ranks) and a vector of ones.
plan::ParameterUnit unit(int tp, int shard_dim) {
  plan::ParameterUnit u;
  plan::Parameter matrix;
  matrix.name = "blocks.{layer}.w";
  matrix.shape = matrix.local_shape = {7, 6};
  matrix.shard_dim = tp > 1 ? shard_dim : -1;
  if (tp > 1) {
    auto& n = matrix.local_shape[static_cast<std::size_t>(shard_dim)];
    n = (n + tp - 1) / tp;
  }
  plan::Parameter ones;
  ones.name = "gain";
  ones.shape = ones.local_shape = {3};
  ones.init = plan::Init::kOne;
  ones.offset = matrix.local_shape[0] * matrix.local_shape[1];
  u.parameters = {matrix, ones};
  u.elements = u.padded = ones.offset + 3;
  return u;
}

std::vector<float> values(const plan::ParameterUnit& u, std::int64_t begin, std::int64_t end,
                          std::int64_t tensor_index, std::int64_t layer = 2) {
  std::vector<float> out(static_cast<std::size_t>(end - begin), -1);
  initial_parameters(u, {.begin = begin, .end = end, .tensor_index = tensor_index, .layer = layer},
                     11, 4, out);
  return out;
}

TEST(InitialParameters, AreTheSameOnEveryShard) {
  const plan::ParameterUnit whole = unit(1, 0);
  const std::vector<float> all = values(whole, 0, whole.padded, 0);
  for (const int dim : {0, 1}) {
    const plan::ParameterUnit half = unit(2, dim);
    const std::int64_t rows = half.parameters[0].local_shape[0],
                       columns = half.parameters[0].local_shape[1];
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      const std::vector<float> part = values(half, 0, half.padded, rank);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns; ++c) {
          const std::int64_t row = dim == 0 ? rank * rows + r : r,
                             column = dim == 1 ? rank * columns + c : c;
          const float expected = row < 7 ? all[static_cast<std::size_t>(row * 6 + column)] : 0.0F;
          EXPECT_EQ(part[static_cast<std::size_t>(r * columns + c)], expected);
        }
      }
      EXPECT_EQ(part.back(), 1.0F);
    }
  }
}

// Of a convolution of 4 taps, of decays and of steps; halves are those of the whole.
TEST(InitialParameters, OfScansLieWhereTheirHeadsForgetSlowly) {
  const auto of = [](plan::Init init, std::vector<std::int64_t> shape, int tp, std::int64_t rank) {
    plan::ParameterUnit u;
    plan::Parameter p;
    p.name = "scan";
    p.shape = p.local_shape = std::move(shape);
    p.shard_dim = 0;
    p.local_shape[0] /= tp;
    p.init = init;
    u.parameters = {p};
    u.elements = u.padded = p.local_shape[0] * (p.shape.size() > 1 ? p.shape[1] : 1);
    return values(u, 0, u.padded, rank);
  };
  const auto softplus = [](float x) { return std::log1p(std::exp(static_cast<double>(x))); };
  const auto expect = [&](plan::Init init, std::vector<std::int64_t> shape, double least,
                          double most, auto read) {
    const std::vector<float> all = of(init, shape, 1, 0);
    double low = 1e9, high = -1e9;
    for (const float x : all) {
      low = std::min(low, read(x));
      high = std::max(high, read(x));
    }
    const double span = most - least;
    EXPECT_GE(low, least * 0.999999);
    EXPECT_LE(high, most * 1.000001);
    EXPECT_LT(low, least + 0.1 * span);
    EXPECT_GT(high, most - 0.1 * span);
    std::vector<float> halves = of(init, shape, 2, 0);
    const std::vector<float> second = of(init, shape, 2, 1);
    halves.insert(halves.end(), second.begin(), second.end());
    EXPECT_EQ(halves, all);
  };
  expect(plan::Init::kTaps, {64, 4}, -0.5, 0.5, [](float x) { return static_cast<double>(x); });
  expect(plan::Init::kLogDecay, {200}, 1, 16,
         [](float x) { return std::exp(static_cast<double>(x)); });
  expect(plan::Init::kLogStep, {200}, std::log(0.001), std::log(0.1),
         [&](float x) { return std::log(softplus(x)); });
}

TEST(InitialParameters, ASliceHasItsColumns) {
  const std::vector<float> all = values(unit(1, 0), 0, 42, 0);
  for (const int dim : {0, 1}) {
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      for (int slice = 0; slice < 3; ++slice) {
        // [7, 6] on two ranks: 4 rows of 2 columns each, or 7 rows of 1 of a rank's 3 columns.
        plan::ParameterUnit u = unit(2, dim);
        plan::Parameter& p = u.parameters[0];
        u.parameters.resize(1);
        p.slices = 3;
        p.slice = slice;
        p.local_shape =
            dim == 0 ? std::vector<std::int64_t>{4, 2} : std::vector<std::int64_t>{7, 1};
        const std::int64_t rows = p.local_shape[0], columns = p.local_shape[1];
        const std::vector<float> part = values(u, 0, rows * columns, rank);
        for (std::int64_t i = 0; i < rows * columns; ++i) {
          const std::int64_t row = i / columns + (dim == 0 ? rank * rows : 0);
          const std::int64_t column = dim == 0 ? slice * 2 + i % columns : rank * 3 + slice;
          EXPECT_EQ(part[static_cast<std::size_t>(i)],
                    row < 7 ? all[static_cast<std::size_t>(row * 6 + column)] : 0.0F);
        }
      }
    }
  }
}

// [4 experts, 4, 6] on two expert ranks and two tensor ranks, cut along either of the others.
TEST(InitialParameters, ExpertsAreTheSameOnEveryRank) {
  plan::ParameterUnit whole;
  plan::Parameter stack;
  stack.name = "blocks.{layer}.experts.w";
  stack.shape = stack.local_shape = {4, 4, 6};
  whole.parameters = {stack};
  const std::vector<float> all = values(whole, 0, 96, 0);
  for (const int dim : {1, 2}) {
    plan::ParameterUnit part = whole;
    plan::Parameter& p = part.parameters[0];
    p.shard_dim = dim;
    p.expert_dim = 0;
    p.local_shape =
        dim == 1 ? std::vector<std::int64_t>{2, 2, 6} : std::vector<std::int64_t>{2, 4, 3};
    const std::int64_t rows = p.local_shape[1], columns = p.local_shape[2];
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      const std::int64_t tensor = rank % 2, expert = rank / 2;
      std::vector<float> own(24);
      initial_parameters(
          part, {.begin = 0, .end = 24, .tensor_index = tensor, .expert_index = expert, .layer = 2},
          11, 4, own);
      for (std::int64_t i = 0; i < 24; ++i) {
        const std::int64_t e = expert * 2 + i / 12,
                           row = i % 12 / columns + (dim == 1 ? tensor * rows : 0),
                           column = i % columns + (dim == 2 ? tensor * columns : 0);
        EXPECT_EQ(own[static_cast<std::size_t>(i)],
                  all[static_cast<std::size_t>((e * 4 + row) * 6 + column)]);
      }
    }
  }
}

TEST(InitialParameters, ARangeIsThatPartOfTheWhole) {
  const plan::ParameterUnit u = unit(1, 0);
  const std::vector<float> all = values(u, 0, u.padded, 0), part = values(u, 5, 44, 0);
  EXPECT_EQ(part, std::vector<float>(all.begin() + 5, all.begin() + 44));
}

TEST(InitialParameters, DependOnLayerAndHaveTheStatedDeviation) {
  plan::ParameterUnit u = unit(1, 0);
  EXPECT_NE(values(u, 0, 42, 0, 1), values(u, 0, 42, 0, 2));
  u.parameters = {u.parameters[0]};
  u.parameters[0].shape = u.parameters[0].local_shape = {100, 100};
  u.parameters[0].init = plan::Init::kNormalScaled;
  double sum = 0;
  for (const float v : values(u, 0, 10'000, 0))
    sum += static_cast<double>(v) * static_cast<double>(v);
  EXPECT_NEAR(std::sqrt(sum / 10'000), 0.02 / std::sqrt(8.0), 2e-4);
}

}  // namespace
}  // namespace orrery::executor
