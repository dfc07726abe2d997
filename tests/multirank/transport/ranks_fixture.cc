#include "ranks_fixture.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/file.h"
#include "executor/launch/rendezvous.h"
#include "tests/support/rank_body.h"
#include "tests/support/scratch_folder.h"

namespace orrery::executor::testing {
namespace {

constexpr std::array kOfTorchrun{"RANK", "LOCAL_RANK"}, kOfSlurm{"SLURM_PROCID", "SLURM_LOCALID"};

pid_t start(int rank, const std::string& body, const Variables& variables,
            const std::filesystem::path& printed) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) ::unsetenv(name);
  const bool slurm = variables.contains("SLURM_NTASKS");
  for (const char* name : slurm ? kOfSlurm : kOfTorchrun)
    ::setenv(name, std::to_string(rank).c_str(), 1);
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  const int file = ::open(printed.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(file, STDERR_FILENO);
  const std::vector<std::string> words = tests::rank_arguments(body);
  ::execl("/proc/self/exe", "rank", words[0].c_str(), words[1].c_str(), nullptr);
  ::_exit(127);
}

int code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

Ended run_ranks(int ranks, const std::string& body, const Variables& variables) {
  using Clock = std::chrono::steady_clock;
  const tests::ScratchFolder scratch;
  Variables all{{"OMP_NUM_THREADS", "1"},
                {"ORRERY_STALL_SECONDS", "30"},
                {"ORRERY_FAKE_RINGS", scratch.path().string()}};
  if (!variables.contains("SLURM_NTASKS"))
    all.insert({{"WORLD_SIZE", std::to_string(ranks)},
                {"MASTER_ADDR", "127.0.0.1"},
                {"MASTER_PORT", std::to_string(free_port().value())}});
  for (const auto& [name, value] : variables) all[name] = value;
  const auto file = [&](int rank) { return scratch.path() / ("printed-" + std::to_string(rank)); };
  const auto begin = Clock::now();
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) children.push_back(start(rank, body, all, file(rank)));
  Ended ended{.codes = std::vector<int>(children.size(), -1), .printed = {}, .seconds = 0};
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  for (std::size_t left = children.size(); left > 0;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const bool late = seconds() > kPatienceSeconds;
    for (std::size_t r = 0; r < children.size(); ++r) {
      int status = 0;
      if (children[r] == 0) continue;
      if (late) ::kill(children[r], SIGKILL);
      if (::waitpid(children[r], &status, late ? 0 : WNOHANG) != children[r]) continue;
      if (!late) ended.codes[r] = code_of(status);
      children[r] = 0;
      --left;
    }
  }
  ended.seconds = seconds();
  for (int rank = 0; rank < ranks; ++rank)
    ended.printed.push_back(base::read_file(file(rank)).value_or(""));
  return ended;
}

void expect_success(const Ended& ended) {
  for (std::size_t r = 0; r < ended.codes.size(); ++r)
    EXPECT_EQ(ended.codes[r], 0) << "rank " << r << ":\n" << ended.printed[r];
}

}  // namespace orrery::executor::testing
