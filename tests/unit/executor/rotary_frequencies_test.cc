// Rotary frequencies as models rescale them to longer sequences.
#include "executor/segments/rotary_frequencies.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/spec.h"

namespace orrery::executor {
namespace {

constexpr model::Rope kLong{.scaling = model::RopeScaling::kLongRope, .original = 16};

TEST(RotaryFrequencies, OfLongRopeAreDividedByTheFactorsOfTheirLength) {
  const LongRopeFactors factors{{1, 2}, {4, 5}};
  const auto within = rotary_frequencies(kLong, 100, 4, 16, factors),
             beyond = rotary_frequencies(kLong, 100, 4, 17, factors);
  EXPECT_DOUBLE_EQ(within[0], 1);
  EXPECT_DOUBLE_EQ(within[1], 0.1 / 2);
  EXPECT_DOUBLE_EQ(beyond[0], 1.0 / 4);
  EXPECT_DOUBLE_EQ(beyond[1], 0.1 / 5);
}

TEST(RotaryFrequencies, OfLongRopeWithoutFactorsArePlain) {
  EXPECT_EQ(rotary_frequencies(kLong, 100, 4, 32), rotary_frequencies({}, 100, 4, 32));
}

// Phi-3's file: 128 of 16 positions, sqrt(1 + ln 8 / ln 16).
TEST(RotaryFrequencies, LongRopeReadsFactorsAndMagnitude) {
  const model::ModelSpec m = model::find_model("phi-3-tiny").value();
  EXPECT_EQ(m.rope.scaling, model::RopeScaling::kLongRope);
  EXPECT_EQ(m.rope.original, 16);
  EXPECT_DOUBLE_EQ(m.rope.magnitude, std::sqrt(1.75));
  EXPECT_EQ(m.short_factors, (std::vector{1.0, 1.05, 1.1, 1.2}));
  EXPECT_EQ(m.long_factors.back(), 7.3);
  model::ModelSpec other = m;
  other.long_factors.back() = 7;
  EXPECT_NE(other.fingerprint(), m.fingerprint());
}

}  // namespace
}  // namespace orrery::executor
