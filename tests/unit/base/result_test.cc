#include "base/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "base/check.h"

namespace orrery::base {
namespace {

Result<int> positive(int n) {
  if (n <= 0) return fail(ErrorCode::kOutOfRange, "{} is not positive", n);
  return n;
}

Result<int> sum(int a, int b) {
  TRY(const int x, positive(a));
  TRY(const int y, positive(b));
  return x + y;
}

Result<void> both(int a, int b) {
  TRY_VOID(positive(a));
  TRY_VOID(positive(b));
  return {};
}

Result<std::unique_ptr<int>> boxed(int n) {
  TRY(auto box, Result<std::unique_ptr<int>>(std::make_unique<int>(n)));
  return box;
}

TEST(Diagnostic, PrintsPlaceCodeMessageAndHint) {
  const Diagnostic d{.code = ErrorCode::kUnknownKey,
                     .message = "unknown key 'latncy' in link 'ib'",
                     .where = {"net.yaml", 8, 1},
                     .notes = {"while reading 'pair'"},
                     .hint = "did you mean 'latency'?"};
  EXPECT_EQ(
      to_string(d),
      "net.yaml:8:1: error[E0002]: unknown key 'latncy' in link 'ib'; did you mean 'latency'?\n"
      "  note: while reading 'pair'");
  EXPECT_EQ(fmt::format("{}", d), to_string(d));
}

TEST(Diagnostic, WithoutAPlacePrintsNone) {
  EXPECT_EQ(to_string(make_error(ErrorCode::kUsage, "no {}", "command")),
            "error[E0015]: no command");
  EXPECT_EQ(to_string(Diagnostic{.message = "broken", .where = {"a.json", 0, 0}}),
            "a.json: error[E0001]: broken");
}

TEST(ErrorTable, CodesAndNamesAreUniqueAndExitCodesKnown) {
  std::set<std::string_view> names;
  for (const ErrorInfo& row : error_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(row.exit_code >= 1 && row.exit_code <= 3);
    EXPECT_EQ(error_info(row.code).name, row.name);
  }
}

TEST(ErrorTable, NumbersAreStable) {
  EXPECT_EQ(static_cast<int>(ErrorCode::kUnknownKey), 2);
  EXPECT_EQ(static_cast<int>(ErrorCode::kUnsupported), 11);
  EXPECT_EQ(static_cast<int>(ErrorCode::kInfeasible), 16);
}

TEST(ExitCode, IsThatOfTheGravestDiagnostic) {
  const auto of = [](std::initializer_list<ErrorCode> codes) {
    Diagnostics all;
    for (const ErrorCode code : codes) all.push_back({.code = code});
    return exit_code(all);
  };
  EXPECT_EQ(of({}), 0);
  EXPECT_EQ(of({ErrorCode::kParse}), 1);
  EXPECT_EQ(of({ErrorCode::kInfeasible, ErrorCode::kParse}), 2);
  EXPECT_EQ(of({ErrorCode::kIo, ErrorCode::kInfeasible}), 3);
}

TEST(Try, BindsTheValueOrReturnsTheError) {
  EXPECT_EQ(sum(1, 2), 3);
  const auto bad = sum(1, -2);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().at(0).message, "-2 is not positive");
  EXPECT_TRUE(both(1, 2));
  EXPECT_FALSE(both(0, 2));
  EXPECT_EQ(*boxed(3).value(), 3);
}

TEST(ErrorSink, ReportsEveryFaultInTheOrderOfTheFile) {
  ErrorSink sink;
  sink.error({"f", 3, 1}, ErrorCode::kParse, "third");
  sink.error({"f", 1, 9}, ErrorCode::kParse, "second");
  EXPECT_EQ(sink.take(positive(0), 7), 7);
  EXPECT_EQ(sink.take(positive(5)), 5);
  sink.error({"f", 1, 2}, ErrorCode::kParse, "first");
  const Result<int> result = sink.result(1);
  ASSERT_FALSE(result);
  std::vector<std::string> messages;
  for (const auto& d : result.error()) messages.push_back(d.message);
  EXPECT_THAT(messages, testing::ElementsAre("0 is not positive", "first", "second", "third"));
  EXPECT_FALSE(sink.result());
  EXPECT_EQ(ErrorSink().result(4), 4);
}

TEST(CheckDeathTest, PrintsFileConditionAndMessageAndAborts) {
  EXPECT_DEATH(ORRERY_CHECK(1 + 1 == 3, "stages {}", 4),
               R"(result_test\.cc:[0-9]+: check failed: 1 \+ 1 == 3: stages 4)");
  EXPECT_DEATH(ORRERY_CHECK(false), "check failed: false");
  ORRERY_CHECK(true);
}

}  // namespace
}  // namespace orrery::base
