#pragma once
/// Seconds of operations where they run: taken from recorded steps, by shape and phase.
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "executor/measure/composition.h"
#include "executor/measure/microbench.h"
#include "executor/measure/recorded_training.h"
#include "model/profile.h"

namespace orrery::executor {

/// Loads of tokens are not measured.
bool is_load(const model::SegmentShape& shape);

/// Null: there is none.
const model::OperatorPoint* point_of(const std::vector<model::OperatorPoint>& points,
                                     const model::SegmentShape& shape, model::Phase phase);

/// Percentiles averaged over ranks.
base::Result<model::OperatorPoint> point_over_ranks(const model::SegmentShape& shape,
                                                    model::Phase phase, const Timing& timing,
                                                    Communicator& world);

/// Steps of one Program.
struct PlayedProgram {
  struct Operation {
    std::vector<double> totals;    // of all its occurrences in a step, by step
    std::int64_t occurrences = 0;  // in a step
  };
  std::map<std::size_t, Operation> operations;  // by index of OperationSamples
  std::vector<double> gaps;                     // time outside spans per operation, by step
};

/// A step of the Program's first rank that took `seconds` as a whole, against the points of its
/// compute operations, loads apart; none where one of them has no point.
std::optional<ComposedStep> composed_of(const plan::Program& program, double seconds,
                                        const std::vector<model::OperatorPoint>& points);

class OperationSamples {
 public:
  /// Adds a step's compute operations, loads apart, each in the share of its time that the thread
  /// had.
  void add(const plan::Program& program, const RecordedStep& step, PlayedProgram& played);

  /// A point for each shape and phase, its percentiles averaged over ranks, in the order of their
  /// first appearance. @pre all ranks added steps of the same Programs
  base::Result<std::vector<model::OperatorPoint>> points(Communicator& world) const;

  /// The operations of a played Program that `points` have: medians over its steps, against theirs.
  /// Seconds are averaged over ranks.
  base::Result<ComposedStep> composed(const PlayedProgram& played,
                                      const std::vector<model::OperatorPoint>& points,
                                      Communicator& world) const;

 private:
  struct Sample {
    model::SegmentShape shape;
    model::Phase phase = model::Phase::kF;
    std::vector<double> seconds;
  };
  std::size_t index_of(const model::SegmentShape& shape, model::Phase phase);
  std::vector<Sample> samples_;
};

}  // namespace orrery::executor
