#pragma once
/// Where a rank trains: device, transport and allocator of this process, opened once for one
/// Program or for several in turn.
#include <memory>
#include <string>

#include "executor/launch/board.h"
#include "executor/runtime/run.h"
#include "executor/state/allocator.h"
#include "executor/state/device.h"
#include "executor/transport/communicator.h"

namespace orrery::executor {

struct Site {
  c10::Device device;
  std::unique_ptr<Communicator> communicator;
  Board board;
  CountingAllocator& allocator;
  bool together = false;  // other ranks wait for this one
};

/// `ranks`: of the Program that the stub plays a rank of; 0: as many as were started. Errors:
/// kBadValue, kMissingFeature, kDevice, kCollective.
base::Result<Site> open_site(const std::string& device, const std::string& backend, int ranks = 0);

/// Trains with the Program's rank of this process; the report is complete on rank 0. Its peak of
/// memory is this Program's alone. Errors as run() has them; a rank that fails alone ends the job.
base::Result<RunReport> train_at(Site& site, const plan::Program& program,
                                 const RunOptions& options, const Hooks& hooks = {});

}  // namespace orrery::executor
