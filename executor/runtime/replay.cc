#include "executor/runtime/replay.h"

#include <utility>

#include "executor/runtime/guarded.h"
#include "executor/runtime/site.h"
#include "plan/program/expand.h"

namespace orrery::executor {

namespace {

base::Result<Site> site_of(const plan::Program& program, const ReplayedRank& rank,
                           const std::string& device) {
  return guarded([&]() -> base::Result<Site> {
    TRY(const std::string name, resolve_device(device, "stub"));
    TRY(const c10::Device opened, open_device(name, 0));
    CountingAllocator& allocator = install_cpu_allocator();
    TRY(std::unique_ptr<Communicator> communicator,
        make_replay_communicator(rank.rank, program.world_size, rank.op_ps, opened));
    Board board = Board::attach(rank.rank);
    return Site{opened, std::move(communicator), std::move(board), allocator, false};
  });
}

}  // namespace

base::Result<RunReport> replay(const plan::Program& program, const ReplayedRank& rank,
                               const RunOptions& options) {
  if (rank.rank < 0 || rank.rank >= program.world_size)
    return base::fail(base::make_error(base::ErrorCode::kOutOfRange,
                                       "the plan has no rank {}: it is for {} ranks", rank.rank,
                                       program.world_size)
                          .with_hint(fmt::format("0 to {}", program.world_size - 1)));
  const std::int64_t operations = plan::op_count(program, program.class_of(rank.rank));
  ORRERY_CHECK(std::cmp_equal(rank.op_ps.size(), operations), "{} times of {} operations",
               rank.op_ps.size(), operations);
  TRY(Site site, site_of(program, rank, options.device));
  base::Result<RunReport> report = train_at(site, program, options);
  site.communicator.reset();  // its streams hold memory
  DeviceMemory(site.allocator, site.device).release_cached();
  site.board.finish();
  return report;
}

}  // namespace orrery::executor
