// The main() of tests that start processes of their own.
#include "tests/support/rank_body.h"

#include <cstdio>

namespace orrery::tests {
namespace {

constexpr std::string_view kFlag = "--rank-body=";

struct RankBody {
  const char *suite, *name, *file;
  int line;
  MakeBody make;
  [[nodiscard]] std::string full_name() const { return std::string(suite) + "." + name; }
};

std::vector<RankBody>& bodies() {
  static std::vector<RankBody> all;
  return all;
}

/// Makes the body of this name the one test to run; false: there is none.
bool choose(std::string_view name) {
  for (const RankBody& b : bodies()) {
    if (b.full_name() != name) continue;
    ::testing::RegisterTest(b.suite, b.name, nullptr, nullptr, b.file, b.line, b.make);
    GTEST_FLAG_SET(filter, b.full_name());
    return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> rank_arguments(std::string_view name) {
  return {std::string(kFlag) + std::string(name), "--gtest_brief=1"};
}

bool add_rank_body(const char* suite, const char* name, const char* file, int line, MakeBody make) {
  bodies().push_back({suite, name, file, line, make});
  return true;
}

}  // namespace orrery::tests

int main(int argc, char** argv) {
  using namespace orrery::tests;
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with(kFlag) || choose(word.substr(kFlag.size()))) continue;
    std::fprintf(stderr, "%s: nobody wrote this body\n", argv[i]);
    return 2;
  }
  return RUN_ALL_TESTS();
}
