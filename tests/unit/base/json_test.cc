#include "base/json.h"

#include <gtest/gtest.h>

#include <limits>

namespace orrery::base {
namespace {

TEST(Json, TextIsCanonical) {
  Json a;
  a["z"] = 0.1;
  a["a"] = {1, "x"};
  EXPECT_EQ(to_text(a), "{\n  \"a\": [\n    1,\n    \"x\"\n  ],\n  \"z\": 0.1\n}\n");
  EXPECT_EQ(to_line(a), R"({"a":[1,"x"],"z":0.1})");
}

TEST(Json, BytesThatAreNoTextAreReplaced) {
  EXPECT_EQ(to_line(Json("a\xff")), "\"a\xEF\xBF\xBD\"");
}

TEST(JsonDeathTest, InfinityIsOurBug) {
  EXPECT_DEATH(static_cast<void>(to_text(Json{{"a", std::numeric_limits<double>::infinity()}})),
               "infinite");
}

TEST(ParseJson, FaultsHaveAPlace) {
  const auto document = parse_json("{\n  \"a\": tru\n}", "f.json");
  ASSERT_FALSE(document);
  EXPECT_EQ(document.error().at(0).where, (SourceSpan{"f.json", 2, 11}));
  EXPECT_EQ(document.error().at(0).code, ErrorCode::kParse);
}

TEST(ParseJson, NumbersThatOverflowAreRefused) {
  const auto document = parse_json("1e999", "f.json");
  ASSERT_FALSE(document);
  EXPECT_EQ(to_string(document.error()),
            "f.json: error[E0005]: not valid JSON: number overflow parsing '1e999'");
}

}  // namespace
}  // namespace orrery::base
