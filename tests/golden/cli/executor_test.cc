/// `orrery` itself knows no LibTorch: for train, replay, calibrate and validate it becomes
/// the `orrery-executor` beside it. A copy of the program with a script for neighbour shows what
/// arrives there; a copy alone refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run_cli.h"

namespace orrery::golden {
namespace {

namespace fs = std::filesystem;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

const char* const kRefusal =
    "error[E0017]: this build has no executor; build with -DORRERY_EXECUTOR=ON and LibTorch\n";

class Executor : public testing::Test {
 protected:
  void SetUp() override { fs::copy_file(program_under_test(), folder_.path() / "orrery"); }
  void write_neighbour(const std::string& script,
                       fs::perms permissions = fs::perms::owner_all) const {
    folder_.write("orrery-executor", "#!/bin/sh\n" + script);
    fs::permissions(neighbour(), permissions);
  }
  [[nodiscard]] fs::path neighbour() const { return folder_.path() / "orrery-executor"; }
  [[nodiscard]] CliResult run(const std::string& arguments) const {
    return run_cli(arguments, folder_.path(), folder_.path() / "orrery");
  }

  const ScratchFolder folder_;
};

TEST_F(Executor, GetsTheArgumentsAndTheStreams) {
  write_neighbour("echo talk >&2; for word; do echo \"<$word>\"; done\n");
  const CliResult r = run("train --plan 'my plan.json' --steps=3 --data ''");
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(r.out, "<train>\n<--plan>\n<my plan.json>\n<--steps=3>\n<--data>\n<>\n");
  EXPECT_EQ(r.err, "talk\n");
}

TEST_F(Executor, IsTheProcessThatTheLauncherStarted) {
  write_neighbour("echo $$ $RANK\n");
  const CliResult r = run_cli("-c 'echo $$ 3; RANK=3 exec ./orrery calibrate --out p.json'",
                              folder_.path(), "/bin/sh");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  const std::string line = r.out.substr(0, r.out.find('\n') + 1);
  EXPECT_EQ(r.out, line + line);
}

TEST_F(Executor, ExitCodesAndSignalsAreItsOwn) {
  write_neighbour("exit 42\n");
  EXPECT_EQ(run("validate --model gpt2-tiny").exit_code, 42);
  write_neighbour("kill -KILL $$\n");
  EXPECT_EQ(run("validate --model gpt2-tiny").exit_code, 128 + 9);
}

TEST_F(Executor, IsNotStartedForPlanningHelpAndWrongOptions) {
  write_neighbour("exit 42\n");
  EXPECT_EQ(run("list models").exit_code, 0);
  EXPECT_EQ(run("simulate --model gpt2 --cluster dgx-a100").exit_code, 0);
  const CliResult help = run("train --help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("mpirun -np 8 orrery train --plan plan.json"));
  EXPECT_EQ(run("train --stepps 3").exit_code, 1);
}

TEST_F(Executor, WithoutItTheCommandsRefuse) {
  const std::string calibrate = "XDG_CACHE_HOME=cache ./orrery calibrate --out p.json",
                    validate = "XDG_CACHE_HOME=cache ./orrery validate --model gpt2-tiny";
  for (const std::string& command :
       {calibrate + " --ranks 1", calibrate + " --ranks 2", validate + " --ranks 2"}) {
    const CliResult r = run_cli(command, folder_.path(), "/usr/bin/env");
    EXPECT_EQ(r.exit_code, 3) << command;
    EXPECT_THAT(r.err, EndsWith(kRefusal)) << command;
  }
  EXPECT_EQ(run("train --plan nowhere.json").exit_code, 1)
      << "what is wrong with the input is said first";
}

TEST_F(Executor, ThatDoesNotStartIsNamed) {
  write_neighbour("exit 0\n", fs::perms::owner_read);
  const CliResult r = run("calibrate --out p.json");
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_EQ(r.err, "error[E0017]: cannot start " + neighbour().string() +
                       ": Permission denied; build or install Orrery again\n");
}

TEST_F(Executor, ThatIsAnotherCopyOfTheProgramRefusesToo) {
  fs::copy_file(program_under_test(), neighbour());
  const CliResult r = run("calibrate --out p.json");
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_EQ(r.err, kRefusal);
}

TEST(Program, LoadsNoLibTorchAndNoMpi) {
  const fs::path executor = program_under_test().parent_path() / "orrery-executor";
  if (!fs::exists(executor)) GTEST_SKIP() << "built without the executor";
  const auto libraries = [](const fs::path& program) {
    return run_cli("'" + program.string() + "'", "/", "/usr/bin/ldd").out;
  };
  EXPECT_THAT(libraries(executor), HasSubstr("libtorch_cpu"));  // ldd sees them where they are
  const std::string loaded = libraries(program_under_test());
  EXPECT_THAT(loaded, HasSubstr("libstdc++"));
  for (const char* other : {"torch", "libc10", "libmpi", "cuda"})
    EXPECT_THAT(loaded, Not(HasSubstr(other)));
}

}  // namespace
}  // namespace orrery::golden
