#include "executor/measure/timed_block.h"

#include <string_view>
#include <utility>

#include "base/numbers.h"
#include "executor/measure/microbench.h"

namespace orrery::executor {
namespace {

/// Forward or backward of the block: its update and zeroed gradients are other templates, once a
/// step.
bool in_block(const plan::Program& program, const plan::Span& span) {
  const std::string_view name = program.templates[plan::TemplateId(span.template_id)].name;
  return name.starts_with("block") && (name.ends_with(".forward") || name.ends_with(".backward"));
}

}  // namespace

TimedBlock::TimedBlock(plan::Program program) : program_(std::move(program)) {}

base::Result<TimedBlock> TimedBlock::make(const BlockCase& block, model::Precision precision) {
  TRY(plan::Program program, program_alone(block.model, block.sequences, block.tokens, precision));
  return TimedBlock(std::move(program));
}

void TimedBlock::add(const RecordedStep& step) {
  // Forward and backward of a micro-batch lie apart, each without a gap.
  std::vector<double> of(as_index(program_.micro_batches));
  const bool first = seconds_.empty();
  for (std::size_t i = 0; i + 1 < step.spans.size(); ++i) {
    const plan::Span& s = step.spans[i];
    if (!in_block(program_, s)) continue;
    of[as_index(s.micro_batch)] += 1e-12 * real(step.spans[i + 1].start_ps - s.start_ps);
    const plan::Op& op = operation_of(program_, s);
    if (first && s.micro_batch == 0 && op.kind == plan::OpKind::kCompute)
      operations_.push_back({program_.segments[op.segment], op.phase});
  }
  for (const double t : of) seconds_.push_back(t * step.used_seconds / step.wall_seconds);
}

base::Result<void> TimedBlock::train(Site& site, const Repeats& repeats) {
  return train_alone(
      site, program_, program_.spec.vocab, [&](const RecordedStep& step) { add(step); }, repeats);
}

base::Result<BlockTiming> TimedBlock::timing(Communicator& world) const {
  TRY(const double seconds, mean_over_ranks(world, timing_of(seconds_).median));
  return BlockTiming{operations_, seconds};
}

}  // namespace orrery::executor
