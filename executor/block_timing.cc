#include "executor/block_timing.h"

#include "executor/microbench.h"
#include "executor/site.h"
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

base::Result<BlockTiming> time_block(const BlockCase& c, model::Precision precision, Site& site) {
  TRY(const plan::Program program, program_alone(c.model, c.sequences, c.tokens, precision));
  BlockTiming timing;
  std::vector<double> seconds;
  TRY_VOID(train_alone(site, program, c.model.vocab, [&](const SoloStep& step) {
    const bool first = seconds.empty();
    add_micro_batches(program, step, seconds);
    if (!first) return;
    for (const plan::Span& s : step.spans) {
      const plan::Op& op = operation_of(program, s);
      if (in_block(program, s) && s.micro_batch == 0 && op.kind == plan::OpKind::kCompute) timing.operations.push_back({program.segments[op.segment], op.phase});
    }
  }));
  TRY(timing.seconds, mean_over_ranks(*site.communicator, timing_of(seconds).median));
  return timing;
}

}  // namespace

base::Result<std::vector<BlockTiming>> time_blocks(const std::vector<BlockCase>& cases, const std::string& device, model::Precision precision) {
  TRY(Site site, open_site(device, "auto"));
  std::vector<BlockTiming> timings;
  for (const BlockCase& c : cases) {
    TRY(BlockTiming timing, time_block(c, precision, site));
    timings.push_back(std::move(timing));
  }
  return timings;
}

}  // namespace orrery::executor
