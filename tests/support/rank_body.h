#pragma once
/// \file
/// What each process of a job runs for a test that starts several: the test starts this binary
/// again with rank_arguments(), and only there the body is a test. Example:
///
///     RANK_BODY(Ranks, Collectives) { EXPECT_EQ(...); }
///     TEST(Communicator, IsExact) { launch_local(2, rank_arguments("Ranks.Collectives")); }
///
/// A body that nobody wrote is an error of the process, not a job in which nothing runs.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace orrery::tests {

/// `name` is "Suite.Body".
std::vector<std::string> rank_arguments(std::string_view name);

using MakeBody = ::testing::Test* (*)();
/// For RANK_BODY. True.
bool add_rank_body(const char* suite, const char* name, const char* file, int line, MakeBody make);

}  // namespace orrery::tests

#define RANK_BODY(suite, name)                                                         \
  class suite##_##name##_Body : public ::testing::Test {                               \
    void TestBody() override;                                                          \
  };                                                                                   \
  [[maybe_unused]] const bool suite##_##name##_known = ::orrery::tests::add_rank_body( \
      #suite, #name, __FILE__, __LINE__,                                               \
      []() -> ::testing::Test* { return new suite##_##name##_Body; });                 \
  void suite##_##name##_Body::TestBody()
