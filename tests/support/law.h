#pragma once
/// Properties whose law says nothing of some draws: nothing fits before, so nothing can be slower.
/// Such draws are counted, and too many of them are a failure.
///
///     TEST(Search, MoreMemoryIsNeverSlower) {
///       expect_law({.least_share = 0.5}, [](Draws& draws) {
///         ...
///         draws.asserts(before.has_value());
///         RC_ASSERT(!before || *after <= *before);
///       });
///     }
///
/// Draws that RC_PRE refuses are drawn anew, at most `max_discard_ratio` for each that it accepts
/// (property_main.cc).

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <iostream>
#include <sstream>

namespace orrery::tests {

class Draws {
 public:
  /// Once for a draw: whether the law says something of it.
  void asserts(bool something) {
    ++all_;
    asserting_ += something ? 1 : 0;
  }
  [[nodiscard]] int all() const { return all_; }
  [[nodiscard]] int asserting() const { return asserting_; }

 private:
  int all_ = 0, asserting_ = 0;
};

struct LawOptions {
  double least_share = 0.5;  // of the draws; fewer that assert something are a failure
  int draws = rc::detail::configuration().testParams.maxSuccess;
};

/// Runs `law(Draws&)` as RC_GTEST_PROP runs its body.
template <class Law>
void expect_law(const LawOptions& options, Law law) {
  const testing::TestInfo& info = *testing::UnitTest::GetInstance()->current_test_info();
  rc::detail::TestMetadata metadata;
  metadata.id = std::string(info.test_suite_name()) + "/" + info.name();
  metadata.description = info.name();
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  params.maxSuccess = options.draws;
  Draws draws;
  const auto result = rc::detail::checkTestable([&] { law(draws); }, metadata, params);
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  ASSERT_TRUE(result.template is<rc::detail::SuccessResult>()) << text.str();
  std::cout << draws.asserting() << " of " << draws.all() << " draws assert something\n";
  // Of fewer draws than are usual (under sanitizers) chance may leave three standard deviations
  // less.
  constexpr int kUsual = 100;
  const double share = options.least_share, all = draws.all(),
               chance = rc::detail::configuration().testParams.maxSuccess < kUsual
                            ? 3 * std::sqrt(all * share * (1 - share))
                            : 0;
  EXPECT_GE(draws.asserting() + chance, share * all);
  EXPECT_GE(draws.all(), options.draws) << "a draw did not say whether it asserts something";
}

}  // namespace orrery::tests
