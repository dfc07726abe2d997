/// main() of the property tests: seed 1 unless RC_PARAMS names another, as scripts/test.sh does in
/// CI. RapidCheck prints the parameters when it starts.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

int main(int argc, char** argv) {
  const char* given = std::getenv("RC_PARAMS");
  std::string params = given != nullptr ? given : "seed=1";
  // A property that refuses more of its draws looks at less than it seems to.
  if (params.find("max_discard_ratio") == std::string::npos) params += " max_discard_ratio=3";
  setenv("RC_PARAMS", params.c_str(), 1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
