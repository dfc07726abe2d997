#include "base/rng.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

namespace orrery::base {
namespace {

using testing::ElementsAre;

// Known answers published with Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, GivesThePublishedKnownAnswers) {
  EXPECT_THAT(philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  const std::uint32_t f = 0xffffffff;
  EXPECT_THAT(philox4x32({f, f, f, f}, {f, f}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(
      philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Hash, IsTheFirstTwoWordsOfTheBlock) {
  EXPECT_EQ(hash(0, 0), 0xe169c58d6627e8d5ULL);
  EXPECT_NE(hash(0, 1), hash(1, 0));
  EXPECT_NE(derive(0, 0), hash(0, 0));
}

TEST(NormalQuantile, GivesReferenceValues) {
  constexpr std::array<std::array<double, 2>, 6> kReference = {{{0.5, 0.0},
                                                                {0.975, 1.9599639845400536},
                                                                {0.1, -1.2815515655446008},
                                                                {0.001, -3.090232306167813},
                                                                {1e-12, -7.034483825301132},
                                                                {1e-300, -37.0470962993612}}};
  for (const auto& [p, expected] : kReference)
    EXPECT_NEAR(normal_quantile(p), expected, 4e-15 * std::fabs(expected));
}

TEST(NormalQuantileDeathTest, ZeroAndOneHaveNone) {
  EXPECT_DEATH(static_cast<void>(normal_quantile(0)), "probability");
  EXPECT_DEATH(static_cast<void>(normal_quantile(1)), "probability");
}

TEST(Normal, HasMeanZeroAndVarianceOne) {
  constexpr int kDraws = 100'000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = normal(3, static_cast<std::uint64_t>(i));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0, 4 / std::sqrt(kDraws));
  EXPECT_NEAR(squares / kDraws, 1, 4 * std::sqrt(2.0 / kDraws));
}

TEST(Rng, IsTheSameNumbersInSequence) {
  Rng rng(5);
  EXPECT_EQ(rng.next(), hash(5, 0));
  EXPECT_EQ(rng.next(), hash(5, 1));
  EXPECT_EQ(rng.normal(), normal(5, 2));
}

TEST(Rng, BelowReachesEveryValueAndNoOther) {
  Rng rng(1);
  std::array<int, 6> counts{};
  for (int i = 0; i < 60'000; ++i) ++counts.at(rng.below(6));
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 400);  // about four standard deviations
  EXPECT_EQ(rng.below(1), 0U);
  EXPECT_LT(rng.below(~0ULL), ~0ULL);
}

}  // namespace
}  // namespace orrery::base
