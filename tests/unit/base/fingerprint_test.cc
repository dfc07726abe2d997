#include "base/fingerprint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace orrery::base {
namespace {

// The published digest of no input (xxHash, XXH3 128 bits, seed 0).
TEST(Fingerprint, OfNothingIsThePublishedOne) {
  EXPECT_EQ(Fingerprint().hex(), "99aa06d3014798d86001c324468d497f");
}

TEST(Fingerprint, IsStable) {
  EXPECT_EQ(fingerprint(""), "2c0a8a99dc147d5445c3b49d035665b2");
  EXPECT_EQ(fingerprint("orrery"), "dfe0fcf27fbe4e2ff70b628a0d0fb51a");
  EXPECT_EQ(Fingerprint().add(1).add(2.5).add("x").hex(), "4d50e3466e0cabf47cfcf955e7d77fd7");
}

TEST(Fingerprint, KeepsTheBordersBetweenTexts) {
  EXPECT_NE(Fingerprint().add("ab").add("c").hex(), Fingerprint().add("a").add("bc").hex());
  EXPECT_NE(Fingerprint().add("").hex(), Fingerprint().hex());
}

TEST(Fingerprint, DoesNotDependOnTheWidthOfIntegers) {
  EXPECT_EQ(Fingerprint().add(std::int8_t{-3}).hex(), Fingerprint().add(std::int64_t{-3}).hex());
  EXPECT_EQ(Fingerprint().add(7U).hex(), Fingerprint().add(7LL).hex());
}

TEST(Fingerprint, TakesEqualDoublesAsEqual) {
  EXPECT_EQ(Fingerprint().add(0.0).hex(), Fingerprint().add(-0.0).hex());
  EXPECT_EQ(Fingerprint().add(std::nan("1")).hex(), Fingerprint().add(-std::nan("2")).hex());
  EXPECT_NE(Fingerprint().add(1.0).hex(),
            Fingerprint().add(1.0 + std::numeric_limits<double>::epsilon()).hex());
}

TEST(Fingerprint, CanGoOnAfterADigest) {
  Fingerprint a, b;
  a.add(1);
  static_cast<void>(a.hex());
  EXPECT_NE(a.add(2).hex(), b.add(1).hex());
  EXPECT_EQ(a.hex(), b.add(2).hex());
}

}  // namespace
}  // namespace orrery::base
