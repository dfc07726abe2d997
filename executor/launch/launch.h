#pragma once
#include <string>
#include <vector>

#include "base/result.h"

namespace orrery::executor {

/// This process's place among the ranks: from RANK | OMPI_COMM_WORLD_RANK | PMI_RANK | SLURM_PROCID
/// and their kin; one rank alone if none.
struct Launch {
  int rank = 0, world_size = 1, local_rank = 0;
  std::string source;  // which environment said so
};
base::Result<Launch> detect_launch();

/// Starts `ranks` copies of this program (`arguments`) on this host, waits, forwards their output;
/// when one fails or is killed, ends all within seconds, prints one root-cause block naming the
/// rank, returns exit code 3.
base::Result<int> launch_local(int ranks, const std::vector<std::string>& arguments);

}  // namespace orrery::executor
