#include "base/text.h"

#include <gtest/gtest.h>

namespace orrery::base {
namespace {

using Names = std::vector<std::string>;

TEST(EditDistance, CountsInsertDeleteSubstituteAndSwap) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("latncy", "latency"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("lanes", "laens"), 1U);
}

TEST(Nearest, FindsSlipsOfTheHandOnly) {
  const Names keys = {"latency", "bandwidth", "lanes"};
  EXPECT_EQ(nearest("latncy", keys), "latency");
  EXPECT_EQ(nearest("Bandwidth", keys), "bandwidth");
  EXPECT_EQ(nearest("lane", keys), "lanes");
  EXPECT_EQ(nearest("colour", keys), std::nullopt);
  EXPECT_EQ(nearest("x", Names{"y"}), std::nullopt);
  EXPECT_EQ(nearest("", keys), std::nullopt);
}

TEST(Nearest, TiesGoToTheFirst) {
  EXPECT_EQ(nearest("tp_degre_", Names{"tp_degree", "tp_degrea"}), "tp_degree");
}

TEST(Grouped, CommasFromAThousandOn) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(23.1449), "23.14");
  EXPECT_EQ(grouped(999.4), "999.4");
  EXPECT_EQ(grouped(999.6), "1,000");
  EXPECT_EQ(grouped(94775.4), "94,775");
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(-123456), "-123,456");
  EXPECT_EQ(grouped(1e18), "1e+18");
}

TEST(DidYouMean, ListsShortTablesWhenNothingIsNear) {
  EXPECT_EQ(did_you_mean("latncy", Names{"latency"}), "did you mean 'latency'?");
  EXPECT_EQ(did_you_mean("h100", Names{"dgx-h100", "b200"}), "did you mean 'dgx-h100'?");
  EXPECT_EQ(did_you_mean("H100", Names{"dgx-h100", "b200", "h100-rails"}),
            "did you mean one of dgx-h100, h100-rails?");
  EXPECT_EQ(did_you_mean("colour", Names{"a", "b"}), "known keys: a, b");
  EXPECT_EQ(did_you_mean("colour", Names{"a", "b"}, "values"), "values: a, b");
  EXPECT_EQ(did_you_mean("colour", Names{}), "");
  EXPECT_EQ(did_you_mean("colour", Names(13, "zzzzzzzzzz")), "");
}

TEST(Split, KeepsEmptyPieces) {
  EXPECT_EQ(split("a,,b", ','), (Names{"a", "", "b"}));
  EXPECT_EQ(split("a,", ','), (Names{"a", ""}));
  EXPECT_EQ(split("", ','), (Names{""}));
}

TEST(Join, PutsSeparatorsBetween) {
  EXPECT_EQ(join(Names{"a", "b", "c"}, ", "), "a, b, c");
  EXPECT_EQ(join(Names{}, ", "), "");
}

TEST(Trim, RemovesWhiteSpaceAtBothEnds) {
  EXPECT_EQ(trim(" \t a b\r\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
}

TEST(ParseInteger, IsStrict) {
  EXPECT_EQ(parse_integer("-12"), -12);
  EXPECT_EQ(parse_integer("9223372036854775807"), 9223372036854775807LL);
  for (const char* text :
       {"", " 1", "1 ", "1.0", "1e3", "0x1", "+1", "9223372036854775808", "--1"}) {
    EXPECT_EQ(parse_integer(text), std::nullopt) << text;
  }
}

TEST(ParseReal, IsStrictAndFinite) {
  EXPECT_EQ(parse_real("1e-5"), 1e-5);
  EXPECT_EQ(parse_real("-.5"), -0.5);
  for (const char* text : {"", "inf", "nan", "1e999", "1,5", " 1", "0x1p3", "+1", "1f", "e"}) {
    EXPECT_EQ(parse_real(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace orrery::base
