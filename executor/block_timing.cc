#include "executor/block_timing.h"

#include "executor/device.h"
#include "executor/microbench.h"
#include "executor/run.h"
#include "executor/solo_training.h"

namespace orrery::executor {
namespace {

bool in_block(const plan::Program& program, const plan::Span& span) {
  return program.templates[plan::TemplateId(span.template_id)].name.starts_with("block");
}

/// Adds seconds of the block in each micro-batch: forward and backward lie apart, each without a gap.
void add_micro_batches(const plan::Program& program, const SoloStep& step, std::vector<double>& seconds) {
  std::vector<double> of(static_cast<std::size_t>(program.micro_batches));
  for (std::size_t i = 0; i + 1 < step.spans.size(); ++i) {
    const plan::Span& s = step.spans[i];
    if (in_block(program, s)) of[static_cast<std::size_t>(s.micro_batch)] += 1e-12 * static_cast<double>(step.spans[i + 1].start_ps - s.start_ps);
  }
  for (const double t : of) seconds.push_back(t * step.used_seconds / step.wall_seconds);
}

base::Result<BlockTiming> time_block(const BlockCase& c, model::Precision precision, Communicator& world, CountingAllocator& allocator, c10::Device device) {
  TRY(const plan::Program program, program_alone(c.model, c.sequences, c.tokens, precision));
  BlockTiming timing;
  std::vector<double> seconds;
  TRY_VOID(train_alone(program, c.model.vocab, world, allocator, device, [&](const SoloStep& step) {
    const bool first = seconds.empty();
    add_micro_batches(program, step, seconds);
    if (!first) return;
    for (const plan::Span& s : step.spans) {
      const plan::Op& op = operation_of(program, s);
      if (in_block(program, s) && s.micro_batch == 0 && op.kind == plan::OpKind::kCompute) timing.operations.push_back({program.segments[op.segment], op.phase});
    }
  }));
  TRY(timing.seconds, mean_over_ranks(world, timing_of(seconds).median));
  return timing;
}

}  // namespace

base::Result<std::vector<BlockTiming>> time_blocks(const std::vector<BlockCase>& cases, const std::string& device_kind, model::Precision precision) {
  TRY(const Launch launch, detect_launch());
  TRY(const std::string device_name, resolve_device(device_kind, "auto"));
  TRY(const c10::Device device, open_device(device_name, launch.local_rank));
  CountingAllocator& allocator = install_cpu_allocator();
  TRY(const std::unique_ptr<Communicator> world, make_communicator(resolve_backend("auto", device_name, launch), launch, launch.world_size));
  std::vector<BlockTiming> timings;
  for (const BlockCase& c : cases) {
    TRY(BlockTiming timing, time_block(c, precision, *world, allocator, device));
    timings.push_back(std::move(timing));
  }
  return timings;
}

}  // namespace orrery::executor
