#pragma once
#include <vector>

#include "base/result.h"
#include "executor/measure/block_timing.h"
#include "executor/measure/recorded_training.h"
#include "plan/program/program.h"

namespace orrery::executor {

/// A block that is timed step by step.
class TimedBlock {
 public:
  static base::Result<TimedBlock> make(const BlockCase& block, model::Precision precision);
  [[nodiscard]] const plan::Program& program() const { return program_; }
  /// Trains it, every rank alone, all at once.
  base::Result<void> train(Site& site, const Repeats& repeats);
  /// @pre it was trained.
  base::Result<BlockTiming> timing(Communicator& world) const;

 private:
  explicit TimedBlock(plan::Program program);
  void add(const RecordedStep& step);
  plan::Program program_;
  std::vector<BlockTiming::Operation> operations_;
  std::vector<double> seconds_;  // of micro-batches
};

}  // namespace orrery::executor
