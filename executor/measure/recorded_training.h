#pragma once
/// Training with every operation's time taken: by each rank alone, communication left out, which
/// shows what operations take in company; or by all together, which shows what communication takes
/// there.
#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "executor/runtime/site.h"
#include "model/spec.h"
#include "plan/program/plan.h"
#include "plan/program/program.h"
#include "plan/program/trace.h"

namespace orrery::executor {

/// A Program of so many micro-batches; `options` without a global batch.
base::Result<plan::Program> uniform_program(const model::ModelSpec& model,
                                            plan::UniformOptions options, int micro_batches);
/// A Program of two micro-batches on one device.
base::Result<plan::Program> program_alone(const model::ModelSpec& model, std::int64_t sequences,
                                          std::int64_t tokens, model::Precision precision);

/// A step. Used: on the CPU the thread's CPU time, of steps that nothing disturbed as long as the
/// step; on an accelerator its own time, which spans of a step cover without a gap. No spans of a
/// step that is not recorded.
struct RecordedStep {
  double wall_seconds = 0, used_seconds = 0;
  const std::vector<plan::Span>& spans;
};
using OnStep = std::function<void(const RecordedStep&)>;

struct Repeats {
  int warm = 2, steps = 8;
  bool recorded = true;
};

/// Every rank plays the Program's rank 0 by itself, all at once; its communication moves nothing.
/// `visit` after each step but those to warm up.
base::Result<void> train_alone(Site& site, const plan::Program& program, std::int64_t vocab,
                               const OnStep& visit, const Repeats& repeats = {});
/// The Program's ranks are the site's. @pre as many of each
base::Result<void> train_together(Site& site, const plan::Program& program, std::int64_t vocab,
                                  const OnStep& visit, const Repeats& repeats = {});

const plan::Op& operation_of(const plan::Program& program, const plan::Span& span);

/// The mean and the largest of every rank's value, on all ranks.
base::Result<double> mean_over_ranks(Communicator& world, double value);
base::Result<double> largest_over_ranks(Communicator& world, double value);

}  // namespace orrery::executor
