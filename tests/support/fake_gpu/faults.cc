#include "tests/support/fake_gpu/faults.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

namespace orrery::tests::fake {
namespace {

struct Plan {
  std::string call, what;
  int at = 0, milliseconds = 0;
  std::atomic<int> calls = 0;
};

int own_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  return 0;
}

Plan& plan() {
  static Plan* const made = [] {
    auto* p = new Plan;
    const char* text = std::getenv("ORRERY_FAKE_FAULT");
    if (text == nullptr || *text == 0) return p;
    std::istringstream words(text);
    int rank = -1;
    if (!(words >> rank >> p->call >> p->at >> p->what))
      throw std::runtime_error("ORRERY_FAKE_FAULT is not 'rank call n what'");
    words >> p->milliseconds;
    if (rank != own_rank()) p->call.clear();
    return p;
  }();
  return *made;
}

}  // namespace

Fault fault_at(std::string_view call) {
  Plan& p = plan();
  if (p.call != call || ++p.calls != p.at) return Fault::kNone;
  if (p.what == "kill") ::kill(::getpid(), SIGKILL);
  while (p.what == "stop") std::this_thread::sleep_for(std::chrono::seconds(1));
  if (p.what == "fail") return Fault::kFail;
  if (p.what == "oom") return Fault::kOutOfMemory;
  if (p.what == "delay") return Fault::kDelay;
  if (p.what == "drop") return Fault::kDrop;
  if (p.what == "async") return Fault::kAsync;
  throw std::runtime_error("unknown fault '" + p.what + "'");
}

std::chrono::milliseconds delay() { return std::chrono::milliseconds(plan().milliseconds); }

}  // namespace orrery::tests::fake
