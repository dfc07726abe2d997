/// Who started this rank. Each environment states rank, world size and local rank under its own
/// names; the first that states a rank is believed.
#include <array>
#include <cstdlib>
#include <optional>

#include "base/numbers.h"
#include "base/text.h"
#include "executor/launch/launch.h"

namespace orrery::executor {

using base::ErrorCode;

namespace {

struct Environment {
  const char *source, *rank, *world_size, *local_rank;
};

// mpirun first: under it RANK may be a leftover of the shell that started it.
constexpr std::array kEnvironments = {
    Environment{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK"},
    Environment{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    Environment{"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    Environment{"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};

base::Result<int> number(const char* name, std::optional<int> fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr && fallback) return *fallback;
  if (text == nullptr)
    return base::fail(ErrorCode::kMissingKey, "{} is not set, although the rank of this process is",
                      name);
  const auto value = base::parse_integer(text);
  if (!value || *value < 0 || *value > 1 << 30)
    return base::fail(ErrorCode::kBadValue, "{}='{}' is not a rank or a count of ranks", name,
                      text);
  return as_int(*value);
}

}  // namespace

base::Result<Launch> detect_launch() {
  for (const Environment& e : kEnvironments) {
    if (std::getenv(e.rank) == nullptr) continue;
    Launch launch;
    launch.source = e.source;
    TRY(launch.rank, number(e.rank, std::nullopt));
    TRY(launch.world_size, number(e.world_size, std::nullopt));
    TRY(launch.local_rank, number(e.local_rank, 0));
    if (launch.rank >= launch.world_size) {
      return base::fail(ErrorCode::kInconsistent, "{}={} in a world of {}={}", e.rank, launch.rank,
                        e.world_size, launch.world_size);
    }
    return launch;
  }
  return Launch{.rank = 0, .world_size = 1, .local_rank = 0, .source = "none"};
}

}  // namespace orrery::executor
