/// executor_calls.h in `orrery`, which must start without LibTorch: hand over to `orrery-executor`,
/// or refuse.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cli/executor_calls.h"
#include "cli/executor_libraries.h"

namespace orrery::cli {

namespace {

namespace fs = std::filesystem;

tl::unexpected<base::Diagnostics> no_executor() {
  return refuse(kMissingFeature, "build with -DORRERY_EXECUTOR=ON and LibTorch",
                "this build has no executor");
}

}  // namespace

Result<void> enter_executor(const std::vector<std::string>& arguments) {
  const fs::path executor = executor_program();
  std::error_code error;
  if (executor.empty() || executor == fs::read_symlink("/proc/self/exe", error)) return {};
  TRY(const std::vector<LoadedLibrary> libraries, libraries_of(executor));
  if (const std::string missing = missing_libraries(libraries); !missing.empty())
    return refuse(kMissingFeature, library_advice(), "{} cannot load {}", executor.string(),
                  missing);
  std::vector<std::string> line{executor.string()};
  line.insert(line.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : line) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  return refuse(kMissingFeature, "build or install Orrery again", "cannot start {}: {}",
                executor.string(), std::strerror(errno));
}

int leave(int code) { return code; }

bool launched_as_rank() { return false; }
Result<void> check_trainable(const plan::Program&) { return no_executor(); }
Result<int> launch(int, const std::vector<std::string>&) { return no_executor(); }
Result<TrainOutcome> train_here(const plan::Program&, const TrainJob&) { return no_executor(); }
Result<executor::RunReport> replay_here(const plan::Program&, const executor::ReplayedRank&,
                                        const executor::RunOptions&) {
  return no_executor();
}
Result<CalibrateOutcome> calibrate_here(const CalibrateJob&) { return no_executor(); }
Result<BlocksOutcome> time_blocks_here(const std::vector<executor::BlockCase>&, const std::string&,
                                       model::Precision) {
  return no_executor();
}
Result<RoundsOutcome> train_in_rounds_here(const std::vector<plan::Program>&,
                                           const executor::RoundsOptions&) {
  return no_executor();
}

}  // namespace orrery::cli
