#include "executor/measure/control.h"

#include "executor/measure/microbench.h"
#include "executor/measure/recorded_training.h"

namespace orrery::executor {
namespace {

constexpr std::int64_t kCollectiveBytes = 1 << 20;

/// About 10 ms of a core, or of a GPU.
model::ModelSpec control_model(bool cpu) {
  model::ModelSpec m = model::find_model("gpt2-tiny").value();
  m.name = "control";
  m.layers = 1;
  m.hidden = cpu ? 256 : 2048;
  m.heads = m.kv_heads = m.hidden / 64;
  m.head_dim = 64;
  m.ffn = 4 * m.hidden;
  m.max_positions = cpu ? 128 : 1024;
  return m;
}

base::Result<double> time_all_reduce(Site& site) {
  Communicator& world = *site.communicator;
  if (world.world_size() == 1) return 0;
  TRY(const Channel channel,
      channel_of(world, {.name = "", .size = world.world_size()}, plan::Stream::kData));
  return time_collective(world, channel, model::Collective::kAllReduce, kCollectiveBytes,
                         site.device);
}

}  // namespace

base::Result<model::Control> time_control(Site& site, model::Precision precision) {
  const model::ModelSpec block = control_model(site.device.is_cpu());
  TRY(const plan::Program program, program_alone(block, 1, block.max_positions, precision));
  std::vector<double> seconds;
  TRY_VOID(train_alone(site, program, block.vocab,
                       [&](const RecordedStep& step) { seconds.push_back(step.wall_seconds); }));
  model::Control control;
  TRY(control.compute_seconds,
      mean_over_ranks(*site.communicator, timing_of(std::move(seconds)).median));
  TRY(control.collective_seconds, time_all_reduce(site));
  return control;
}

model::Control summary_of(std::span<const model::Control> timings) {
  std::vector<double> compute, collective;
  for (const model::Control& t : timings) {
    compute.push_back(t.compute_seconds);
    collective.push_back(t.collective_seconds);
  }
  const Timing t = timing_of(std::move(compute));
  return {.compute_seconds = t.median,
          .collective_seconds = timing_of(std::move(collective)).median,
          .spread = (t.p90 - t.p10) / (2 * t.median)};
}

}  // namespace orrery::executor
