#include "executor/measure/calibration_programs.h"

#include <algorithm>
#include <tuple>

#include "executor/measure/recorded_training.h"

namespace orrery::executor {
namespace {

/// Unless tp does not divide this model.
void add_program(const model::ModelSpec& model, const plan::UniformOptions& options,
                 int micro_batches, std::vector<plan::Program>& programs) {
  if (auto program = uniform_program(model, options, micro_batches))
    programs.push_back(*std::move(program));
}

}  // namespace

std::vector<plan::Program> programs_of(const model::ModelSpec& model, model::Precision precision,
                                       int ranks, std::int64_t sequences, bool sharded,
                                       std::int64_t tokens) {
  std::vector<plan::Program> programs;
  for (const int tp : {1, 2, 4}) {
    if (tp > std::max(ranks, 2)) continue;
    for (const bool sequence_parallel : {false, true}) {
      for (const int zero : {0, 3}) {
        if ((sequence_parallel && tp == 1) || (zero > 0 && !sharded)) continue;
        add_program(model,
                    {.tp = tp,
                     .dp = zero > 0 ? 2 : 1,
                     .zero = zero,
                     .sequence_parallel = sequence_parallel,
                     .micro_batch = sequences,
                     .sequence = tokens,
                     .precision = precision},
                    2, programs);
      }
    }
  }
  return programs;
}

std::vector<plan::Program> communicating_programs(const model::ModelSpec& model,
                                                  model::Precision precision, int world,
                                                  std::int64_t sequences, std::int64_t tokens) {
  std::vector<plan::Program> programs;
  for (const auto& [tp, sequence_parallel, zero] :
       {std::tuple{world, false, 0}, {world, true, 0}, {1, false, 0}, {1, false, 3}}) {
    add_program(model,
                {.tp = tp,
                 .dp = world / tp,
                 .zero = zero,
                 .sequence_parallel = sequence_parallel,
                 .micro_batch = sequences,
                 .sequence = tokens,
                 .precision = precision},
                1, programs);
  }
  return programs;
}

}  // namespace orrery::executor
