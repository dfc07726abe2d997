/// The local launcher: mpirun on this host, watched.
///
/// mpirun ends all ranks when one dies and says so on stderr between rulers of dashes; those blocks
/// are read here, not shown. The board (board.h) says what each rank was doing. Should mpirun not
/// end the job within kPatience, every rank is killed.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "base/numbers.h"
#include "base/text.h"
#include "executor/launch/board.h"
#include "executor/launch/launch.h"
#include "executor/launch/rendezvous.h"

namespace orrery::executor {

using base::ErrorCode;

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(6);
constexpr int kPollMilliseconds = 100;

/// What mpirun said of the end of the job.
struct Verdict {
  int rank = -1;
  int signal = 0;
  int exit_code = 0;
};

/// Splits mpirun's stderr into the ranks' own lines, which are forwarded, and its notices, which
/// are read.
class Notices {
 public:
  void feed(std::string_view bytes) {
    rest_ += bytes;
    for (std::size_t end; (end = rest_.find('\n')) != std::string::npos; rest_.erase(0, end + 1))
      line(rest_.substr(0, end));
  }
  void end() {
    if (!rest_.empty()) line(rest_);
  }
  [[nodiscard]] const Verdict& verdict() const { return verdict_; }

 private:
  void line(const std::string& text) {
    if (text.size() >= 60 && text.find_first_not_of('-') == std::string::npos) {
      inside_ = !inside_;
      return;
    }
    if (inside_) return notice(text);
    if (text.find("more process has sent help message") != std::string::npos) return;
    if (text.find("orte_base_help_aggregate") != std::string::npos) return;
    std::fputs((text + "\n").c_str(), stderr);
  }
  void notice(const std::string& text) {
    if (const auto rank = number_after(text, "process rank ")) {
      verdict_.rank = *rank;
      verdict_.signal = number_after(text, "on signal ").value_or(verdict_.signal);
    }
    if (text.find("Process name:") != std::string::npos)
      verdict_.rank = number_after(text, "],").value_or(verdict_.rank);
    verdict_.exit_code = number_after(text, "Exit code:").value_or(verdict_.exit_code);
  }
  static std::optional<int> number_after(const std::string& text, std::string_view words) {
    const std::size_t at = text.find(words);
    int value = 0;
    if (at == std::string::npos || std::sscanf(text.c_str() + at + words.size(), "%d", &value) != 1)
      return std::nullopt;
    return value;
  }
  std::string rest_;
  bool inside_ = false;
  Verdict verdict_;
};

/// A folder that goes with its owner.
using TemporaryFolder = std::shared_ptr<const std::filesystem::path>;
base::Result<TemporaryFolder> make_temporary_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "orrery-board-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    return base::fail(ErrorCode::kIo, "{}: {}", name, std::strerror(errno));
  return TemporaryFolder(new std::filesystem::path(name), [](const std::filesystem::path* path) {
    std::error_code ignored;
    std::filesystem::remove_all(*path, ignored);
    delete path;
  });
}

base::Result<std::string> find_mpirun() {
  const char* path = std::getenv("PATH");
  for (const std::string& folder : base::split(path == nullptr ? "" : path, ':')) {
    const std::string candidate = folder + "/mpirun";
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return base::fail(
      base::make_error(ErrorCode::kMissingFeature,
                       "mpirun is not on PATH, and ranks on this host are MPI processes")
          .with_hint("install Open MPI, or run scripts/setup.sh"));
}

std::vector<std::string> command_line(const std::string& mpirun, int ranks,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> line{
      mpirun,  "-np", std::to_string(ranks), "--oversubscribe", "--bind-to",           "none",
      "--mca", "btl", "self,vader",          "--mca",           "mpi_yield_when_idle", "1"};
  line.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  line.insert(line.end(), arguments.begin(), arguments.end());
  return line;
}

base::Result<void> set_environment(int ranks, const std::filesystem::path& board) {
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  const std::string threads = std::to_string(std::max(1U, cores / static_cast<unsigned>(ranks)));
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  ::setenv("OMP_NUM_THREADS", threads.c_str(), 1);
  ::setenv(kBoardVariable, board.c_str(), 1);
  // of this job alone, whatever the shell has
  TRY(const std::uint16_t port, free_port());
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  return {};
}

// In the child: never returns. Only what is safe after fork in a process that may have threads.
[[noreturn]] void become(const std::vector<char*>& argv, int error_pipe) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::dup2(error_pipe, STDERR_FILENO);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

bool gone(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

/// Rank that died without finishing or reporting, or nothing.
std::optional<int> silent_death(const std::filesystem::path& board, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    const auto progress = read_progress(board, rank);
    if (progress && progress->pid > 0 && progress->finished == 0 && gone(progress->pid))
      return rank;
  }
  return std::nullopt;
}

void kill_ranks(const std::filesystem::path& board, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    const auto progress = read_progress(board, rank);
    if (progress && progress->pid > 0) ::kill(progress->pid, SIGKILL);
  }
}

void print_root_cause(int ranks, const Verdict& verdict,
                      const std::optional<RankProgress>& progress) {
  std::string text =
      fmt::format("error[E{:04}]: rank {} ", as_int(ErrorCode::kCollective), verdict.rank);
  if (verdict.signal != 0)
    text +=
        fmt::format("was killed by signal {} ({})", verdict.signal, ::strsignal(verdict.signal));
  else
    text += fmt::format("ended with exit code {}", verdict.exit_code);
  text += fmt::format("; all {} ranks were ended\n", ranks);
  if (progress && progress->operation[0] != '\0') {
    text += fmt::format(
        "  note: last seen at stage {}, step {}, layer {}, micro-batch {}, operation '{}'\n",
        progress->stage, progress->step, progress->layer, progress->micro_batch,
        progress->operation);
  }
  std::fputs(text.c_str(), stderr);
}

/// Forwards stderr until mpirun ends; kills the job when a death was not followed by its end.
int watch(pid_t mpirun, int pipe, const std::filesystem::path& board, int ranks, Notices& notices,
          std::optional<int>& dead) {
  std::optional<Clock::time_point> deadline;
  std::array<char, 4096> buffer;
  for (int status = 0;;) {
    pollfd waiting{.fd = pipe, .events = POLLIN, .revents = 0};
    if (::poll(&waiting, 1, kPollMilliseconds) > 0) {
      const ssize_t n = ::read(pipe, buffer.data(), buffer.size());
      if (n > 0) {
        notices.feed({buffer.data(), as_index(n)});
        continue;
      }
      if (n == 0) std::this_thread::sleep_for(std::chrono::milliseconds(kPollMilliseconds));
    }
    if (::waitpid(mpirun, &status, WNOHANG) == mpirun) return status;
    if (!deadline) {
      dead = silent_death(board, ranks);
      if (dead) deadline = Clock::now() + kPatience;
    } else if (Clock::now() > *deadline) {
      kill_ranks(board, ranks);
      ::kill(mpirun, SIGKILL);
    }
  }
}

}  // namespace

base::Result<int> launch_local(int ranks, const std::vector<std::string>& arguments) {
  if (ranks < 1) return base::fail(ErrorCode::kOutOfRange, "{} ranks", ranks);
  TRY(const std::string mpirun, find_mpirun());
  TRY(const TemporaryFolder folder, make_temporary_folder());
  const std::filesystem::path& board = *folder;
  std::vector<std::string> line = command_line(mpirun, ranks, arguments);
  std::vector<char*> argv;
  for (std::string& word : line) argv.push_back(word.data());
  argv.push_back(nullptr);
  TRY_VOID(set_environment(ranks, board));
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return base::fail(ErrorCode::kIo, "pipe: {}", std::strerror(errno));
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) become(argv, ends[1]);
  for (const char* name : {kBoardVariable, "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
  ::close(ends[1]);
  if (child < 0) return base::fail(ErrorCode::kIo, "fork: {}", std::strerror(errno));

  Notices notices;
  std::optional<int> dead;
  const int status = watch(child, ends[0], board, ranks, notices, dead);
  const bool ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (!ended_well) kill_ranks(board, ranks);  // none is left when mpirun ended the job
  std::array<char, 4096> buffer;
  for (ssize_t n; (n = ::read(ends[0], buffer.data(), buffer.size())) > 0;)
    notices.feed({buffer.data(), as_index(n)});
  notices.end();
  ::close(ends[0]);
  if (ended_well) return 0;
  if (const auto failure = read_failure(board)) {
    std::fputs((failure->text + "\n").c_str(), stderr);
    return failure->exit_code;
  }
  Verdict verdict = notices.verdict();
  if (verdict.rank < 0) verdict.rank = dead.value_or(0);
  if (verdict.signal == 0 && verdict.exit_code == 0)
    verdict.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 3;
  // A rank that ended by itself without the board has said why: only its code is left to pass on.
  if (verdict.signal == 0 && !read_progress(board, verdict.rank)) return verdict.exit_code;
  print_root_cause(ranks, verdict, read_progress(board, verdict.rank));
  return 3;
}

}  // namespace orrery::executor
