/// The experiments that need nothing but the program: their own comparison with the expected
/// numbers decides.
#include <gtest/gtest.h>

#include <cstdlib>

#include "run_cli.h"
#include "tests/support/paths.h"

namespace orrery::golden {
namespace {

/// Exit status of experiments/<name>/run.py with the program under test.
int run(const std::string& name, const std::string& arguments = {}) {
  const std::string program = program_under_test().string();
  return std::system((std::string("python3 -B '") + tests::kSourceDir + "/experiments/" + name +
                      "/run.py' --orrery '" + program + "' " + arguments)
                         .c_str());
}

TEST(Experiments, OsdpIsReproduced) { EXPECT_EQ(run("osdp"), 0); }

/// All 396 rows: nine models of four families, 8 and 16 GPUs, every baseline.
TEST(Experiments, GalvatronIsReproduced) { EXPECT_EQ(run("galvatron"), 0); }

/// Published steps and layers of 22B to 1T parameters within their bars, by constants fitted on
/// other tables.
TEST(Experiments, KorthikantisStepsAreWithinTheirBars) {
  EXPECT_EQ(run("validation", "--family korthikanti"), 0);
}

/// The command without a profile, on 100 published steps of all families: what ships is as good as
/// what the experiment fitted.
TEST(Experiments, TheDefaultCommandIsWithinTheBarsOfPublishedSteps) {
  EXPECT_EQ(run("validation", "--default"), 0);
}

}  // namespace
}  // namespace orrery::golden
