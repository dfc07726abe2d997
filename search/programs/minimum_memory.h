#pragma once
/// \file
/// A plan of little memory, for when nothing fits: what is the least that would have to be added?
///
/// A stage's minimum-memory sequence of n layers uses the one option of least peak, but for the
/// last layer, which takes the option of least memory there: its backward stands beside the stashes
/// of all others (layer_program.h). The partition starts even, the last stages taking what is left
/// over (they hold the fewest micro-batches); then the stage that is furthest over its budget hands
/// layers to the stage that they make least full, while that lowers the highest excess. A heuristic
/// over the form of memory; on 34,000 random requests it was the least peak of all plans
/// (tests/oracle/search/random_plans_test.cc repeats 4,000 of them).
///
/// Cost: O(options · layers) a stage and number of layers.
#include "search/programs/pipeline_program.h"

namespace orrery::search {

/// Sequences and their memory; times are left 0. @pre every stage has options, and there are at
/// least as many layers as stages.
PipelineAnswer minimum_memory(const PipelineProblem& pipeline);

}  // namespace orrery::search
