#pragma once
/// Training by every rank of a launch on its own, all at once: how a step's operations do together, without communication.
#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "executor/site.h"
#include "model/spec.h"
#include "plan/program.h"
#include "plan/trace.h"

namespace orrery::executor {

/// A Program of two micro-batches on one device.
base::Result<plan::Program> program_alone(const model::ModelSpec& model, std::int64_t sequences, std::int64_t tokens, model::Precision precision);

/// A step. Used: on the CPU the thread's CPU time, as the medians of a calibration are of samples that nothing disturbed; on an accelerator its own
/// time, which spans of a step cover without a gap.
struct SoloStep {
  double wall_seconds = 0, used_seconds = 0;
  const std::vector<plan::Span>& spans;
};
/// Two steps to warm up, then `visit` after each of eight.
base::Result<void> train_alone(Site& site, const plan::Program& program, std::int64_t vocab, const std::function<void(const SoloStep&)>& visit);

const plan::Op& operation_of(const plan::Program& program, const plan::Span& span);

/// The mean and the largest of every rank's value, on all ranks.
base::Result<double> mean_over_ranks(Communicator& world, double value);
base::Result<double> largest_over_ranks(Communicator& world, double value);

}  // namespace orrery::executor
