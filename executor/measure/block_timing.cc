#include "executor/measure/block_timing.h"

#include "executor/measure/timed_block.h"
#include "executor/runtime/site.h"

namespace orrery::executor {
namespace {

/// Hosts drift by the second, so cases take turns there. On a GPU a case takes longer to set up
/// than to run.
struct Turns {
  int rounds;
  Repeats repeats;
};
Turns turns_on(const c10::Device& device) {
  return device.is_cpu() ? Turns{12, {.warm = 1, .steps = 2}} : Turns{1, {}};
}

}  // namespace

base::Result<std::vector<BlockTiming>> time_blocks(const std::vector<BlockCase>& cases,
                                                   const std::string& device,
                                                   model::Precision precision) {
  TRY(Site site, open_site(device, "auto"));
  std::vector<TimedBlock> blocks;
  for (const BlockCase& c : cases) {
    TRY(TimedBlock block, TimedBlock::make(c, precision));
    blocks.push_back(std::move(block));
  }
  const auto [rounds, repeats] = turns_on(site.device);
  for (int round = 0; round < rounds; ++round) {
    for (TimedBlock& b : blocks) TRY_VOID(b.train(site, repeats));
  }
  std::vector<BlockTiming> timings;
  for (const TimedBlock& b : blocks) {
    TRY(timings.emplace_back(), b.timing(*site.communicator));
  }
  return timings;
}

}  // namespace orrery::executor
