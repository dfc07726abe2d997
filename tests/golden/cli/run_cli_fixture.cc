#include "run_cli.h"
#include "tests/support/paths.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace orrery::golden {

namespace fs = std::filesystem;

namespace {

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

fs::path program_under_test() {
  const char* other = std::getenv("ORRERY_CLI");
  return other ? other : tests::kCli;
}

CliResult run_cli(const std::string& arguments, const fs::path& folder, const fs::path& program) {
  const ScratchFolder streams;
  const std::string command = "cd '" + folder.string() + "' && '" + program.string() + "' " +
                              arguments + " >'" + (streams.path() / "out").string() + "' 2>'" +
                              (streams.path() / "err").string() + "' </dev/null";
  const int status = std::system(command.c_str());
  CliResult r;
  r.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  r.out = read(streams.path() / "out");
  r.err = read(streams.path() / "err");
  return r;
}

}  // namespace orrery::golden
