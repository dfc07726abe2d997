/// What bash offers at some places of a command line, with the script that the program prints.
#include <gtest/gtest.h>

#include "run_cli.h"

namespace orrery::golden {
namespace {

struct Place {
  std::string name;
  std::string words;     // typed so far; the last one is completed
  std::string expected;  // offered, one a line
};
void PrintTo(const Place& p, std::ostream* out) { *out << p.words; }

class BashCompletion : public testing::TestWithParam<Place> {};

TEST_P(BashCompletion, OffersExactlyThis) {
  const ScratchFolder folder;
  folder.write("my plan.json", "{}");
  folder.write("run.sh", "orrery() { '" + program_under_test().string() +
                             "' \"$@\"; }\nsource <(orrery completions bash)\nCOMP_WORDS=(" +
                             GetParam().words +
                             ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_orrery\nprintf '%s\\n' "
                             "\"${COMPREPLY[@]}\"\n");
  const CliResult r = run_cli("run.sh", folder.path(), "/bin/bash");
  EXPECT_EQ(r.out, GetParam().expected) << r.err;
}

INSTANTIATE_TEST_SUITE_P(
    Golden, BashCompletion,
    testing::Values(Place{"Command", "orrery pa", "partition\n"},
                    Place{"CommandToExplain", "orrery help comple", "completions\n"},
                    Place{"Option", "orrery plan --global", "--global-batch\n"},
                    Place{"OptionOfAnotherCommand", "orrery list --global", "\n"},
                    Place{"Value", "orrery plan --precision fp8-d", "fp8-delayed\n"},
                    Place{"NameOfTheCatalog", "orrery plan --cluster dgx-a100-", "dgx-a100-40g\n"},
                    Place{"ModelOrFile", "orrery plan --model my", "my plan.json\n"},
                    Place{"File", "orrery simulate --plan m", "my plan.json\n"},
                    Place{"NumberIsNotGuessed", "orrery plan --hosts ''", "\n"},
                    Place{"FirstArgument", "orrery topology sh", "show\n"},
                    Place{"SecondArgument", "orrery topology show dgx-2", "dgx-2-v100\n"},
                    Place{"Shell", "orrery completions z", "zsh\n"}),
    [](const auto& tested) { return tested.param.name; });

TEST(Completions, AreWhatBashTakes) {
  const ScratchFolder folder;
  const CliResult r =
      run_cli("-c '" + program_under_test().string() + " completions bash | bash -n'",
              folder.path(), "/bin/bash");
  EXPECT_EQ(r.exit_code, 0) << r.err;
}

}  // namespace
}  // namespace orrery::golden
