/// The experiments that need nothing but the program: their own comparison with the expected numbers decides.
#include <gtest/gtest.h>

#include <cstdlib>

namespace orrery::golden {
namespace {

/// Exit status of experiments/<name>/run.py with the program under test.
int run(const std::string& name, const std::string& arguments = "") {
  const char* other = std::getenv("ORRERY_CLI");
  const std::string program = other ? other : ORRERY_CLI;
  return std::system(("python3 -B '" ORRERY_SOURCE_DIR "/experiments/" + name + "/run.py' --orrery '" + program + "' " + arguments).c_str());
}

TEST(Experiments, OsdpIsReproduced) { EXPECT_EQ(run("osdp"), 0); }

/// Four models on one host: BERT, ViT, T5 and Swin, every baseline. All 396 rows take a minute with a program that loads LibTorch.
TEST(Experiments, GalvatronIsReproducedAt20GiB) { EXPECT_EQ(run("galvatron", "--only 8gpu/20GiB"), 0); }

}  // namespace
}  // namespace orrery::golden
