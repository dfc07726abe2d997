#include "cli/executor_libraries.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/numbers.h"
#include "base/text.h"
#include "cli/refuse.h"

extern char** environ;

namespace orrery::cli {

namespace fs = std::filesystem;

namespace {

std::string read_all(int descriptor) {
  std::string text;
  std::array<char, 4096> chunk{};
  for (;;) {
    const ssize_t n = ::read(descriptor, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(chunk.data(), as_index(n));
  }
}

/// What the loader prints of a program: a line "\tNAME => PATH (0x...)" or "\tNAME => not found"
/// per library; others ("linux-vdso", the loader itself) have no arrow.
std::vector<LoadedLibrary> read_trace(const std::string& trace) {
  constexpr std::string_view kArrow = " => ";
  std::vector<LoadedLibrary> libraries;
  for (const std::string& line : base::split(trace, '\n')) {
    const std::size_t arrow = line.find(kArrow);
    if (arrow == std::string::npos) continue;
    const std::string rest = line.substr(arrow + kArrow.size());
    const bool found = rest != "not found";
    libraries.push_back({std::string(base::trim(line.substr(0, arrow))),
                         found ? fs::path(rest.substr(0, rest.rfind(" ("))) : fs::path()});
  }
  return libraries;
}

}  // namespace

Result<std::vector<LoadedLibrary>> libraries_of(const fs::path& program) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0)
    return base::fail(kMissingFeature, "no pipe to the loader: {}", std::strerror(errno));
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  std::string trace = "LD_TRACE_LOADED_OBJECTS=1", name = program.string();
  environment.push_back(trace.data());
  environment.push_back(nullptr);
  std::array<char*, 2> argv{name.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDERR_FILENO);
  pid_t child = 0;
  const int failed =
      ::posix_spawn(&child, name.c_str(), &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  const std::string text = read_all(pipe[0]);
  ::close(pipe[0]);
  if (failed != 0)
    return refuse(kMissingFeature, "build or install Orrery again", "cannot start {}: {}", name,
                  std::strerror(failed));
  ::waitpid(child, nullptr, 0);
  return read_trace(text);
}

std::string missing_libraries(const std::vector<LoadedLibrary>& libraries) {
  std::vector<std::string> missing;
  for (const LoadedLibrary& l : libraries)
    if (l.path.empty()) missing.push_back(l.name);
  return base::join(missing, ", ");
}

fs::path executor_program() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const fs::path executor = self.parent_path() / "orrery-executor";
  return !error && fs::exists(executor, error) ? executor : fs::path();
}

std::string library_advice() {
  return "they lie in a folder that is gone or that this user may not read: install with "
         "-DORRERY_INSTALL_LIBTORCH=ON, which puts them beside the program, or name their folder "
         "in "
         "LD_LIBRARY_PATH";
}

}  // namespace orrery::cli
