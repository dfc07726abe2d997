/// What `cmake --install` puts into a prefix: another user, with an empty home, can list and plan
/// from there. LibTorch is a component of its own, too large for a test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "run_cli.h"
#include "tests/support/paths.h"

namespace orrery::golden {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Install : public testing::Test {
 protected:
  void SetUp() override {
    if (program_under_test() != fs::path(tests::kCli))
      GTEST_SKIP() << "the program under test is of another build";
    fs::permissions(folder_.path(), fs::perms(0755));
    const CliResult r = run_cli("--install '" + std::string(tests::kBuildDir) + "' --prefix '" +
                                    prefix().string() + "' --component Unspecified",
                                folder_.path(), tests::kCMake);
    ASSERT_EQ(r.exit_code, 0) << r.out << r.err;
    fs::create_directory(folder_.path() / "home");
    fs::permissions(folder_.path() / "home", fs::perms(0777));
  }
  [[nodiscard]] fs::path prefix() const { return folder_.path() / "prefix"; }
  /// As nobody where the tests run as root.
  [[nodiscard]] CliResult run(const std::string& arguments) const {
    const std::string user =
        ::getuid() == 0 ? "/usr/bin/setpriv --reuid=65534 --regid=65534 --clear-groups " : "";
    return run_cli("-c \"" + user +
                       "env -i PATH=/usr/bin:/bin HOME=" + (folder_.path() / "home").string() +
                       " " + (prefix() / "bin" / "orrery").string() + " " + arguments + "\"",
                   folder_.path() / "home", "/bin/sh");
  }
  [[nodiscard]] std::string text_of(const char* file) const {
    std::ifstream in(prefix() / file, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }

  const ScratchFolder folder_;
};

TEST_F(Install, AnotherUserWithAnEmptyHomePlansFromIt) {
  EXPECT_THAT(run("list models").out, HasSubstr("llama-2-7b"));
  const CliResult plan =
      run("plan --model gpt2-tiny --cluster dgx-1-v100 --global-batch 8 --out plan.json");
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_TRUE(fs::exists(folder_.path() / "home" / "plan.json"));
  EXPECT_EQ(run("simulate --plan plan.json --html step.html").exit_code, 0);
  const CliResult doctor = run("doctor");
  EXPECT_THAT(doctor.out, HasSubstr((prefix() / "share" / "orrery").string()));
  // Without its component another user may not reach the builder's LibTorch: the only problem there
  // may be.
  const bool lacks = doctor.out.find("\nproblem  LibTorch") != std::string::npos;
  EXPECT_EQ(doctor.exit_code, lacks ? 3 : 0) << doctor.out;
  const std::size_t first = doctor.out.find("\nproblem");
  EXPECT_EQ(doctor.out.find("\nproblem", first + (lacks ? 1 : 0)), std::string::npos) << doctor.out;
}

TEST_F(Install, BringsCompletionsAndTheManualPage) {
  for (const auto& [file, kind] : {std::pair{"share/bash-completion/completions/orrery", "bash"},
                                   std::pair{"share/zsh/site-functions/_orrery", "zsh"},
                                   std::pair{"share/fish/vendor_completions.d/orrery.fish", "fish"},
                                   std::pair{"share/man/man1/orrery.1", "man"}}) {
    const std::string text = text_of(file);
    EXPECT_FALSE(text.empty()) << file;
    EXPECT_EQ(text, run(std::string("completions ") + kind).out) << file;
  }
}

}  // namespace
}  // namespace orrery::golden
