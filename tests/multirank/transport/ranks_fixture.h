#pragma once
/// Ranks over the stand-ins for NCCL and CUDA (tests/support/fake_gpu): this binary again, once per
/// rank, in torchrun's environment, or in Slurm's where the variables are. Nobody ends the others
/// when one ends: that is the watchdog's.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace orrery::executor::testing {

using Variables = std::map<std::string, std::string>;

struct Ended {
  std::vector<int> codes;            // by rank; 128 + signal, -1: it was still there
  std::vector<std::string> printed;  // by rank, on stderr
  double seconds = 0;                // of the last to end
};

inline constexpr double kPatienceSeconds = 60;

/// `body` is "Suite.Body" of a RANK_BODY. A rank that is there after kPatienceSeconds is killed.
Ended run_ranks(int ranks, const std::string& body, const Variables& variables = {});

/// All ranks ended well; their words otherwise.
void expect_success(const Ended& ended);

}  // namespace orrery::executor::testing
