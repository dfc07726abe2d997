#pragma once
/// Where the ranks of a job meet that have no MPI between them.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "executor/launch/launch.h"

namespace orrery::executor {

struct Rendezvous {
  std::string host;
  std::uint16_t port = 0;
  bool agent_serves = false;  // torchrun's agent has the store, not rank 0
  std::string attempt;        // tells this start of the job from those before it
};

/// MASTER_ADDR and MASTER_PORT where they are set (torchrun, our own launcher); else, under Slurm,
/// the first host of the step and a port by its job. Errors: kMissingKey, kBadValue.
base::Result<Rendezvous> find_rendezvous(const Launch& launch);

/// Whether the environment states one; without it ranks that MPI started ask MPI.
bool has_rendezvous(const Launch& launch);

/// First host of Slurm's notation: "a[07-09,12],b" gives a07.
std::string first_host(std::string_view nodes);

/// A port of this host that nobody listens at now. Error: kIo.
base::Result<std::uint16_t> free_port();

}  // namespace orrery::executor
