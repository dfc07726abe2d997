/// The experiments that need nothing but the program: their own comparison with the expected numbers decides.
#include <gtest/gtest.h>

#include <cstdlib>

namespace orrery::golden {
namespace {

TEST(Experiments, OsdpIsReproduced) {
  const char* other = std::getenv("ORRERY_CLI");
  const std::string program = other ? other : ORRERY_CLI;
  const std::string command = "python3 '" ORRERY_SOURCE_DIR "/experiments/osdp/run.py' --orrery '" + program + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace orrery::golden
