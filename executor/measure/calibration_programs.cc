#include "executor/measure/calibration_programs.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "plan/lowering/lower.h"

namespace orrery::executor {

std::vector<plan::Program> programs_of(const model::ModelSpec& model, model::Precision precision,
                                       int ranks, std::int64_t sequences, bool sharded,
                                       std::int64_t tokens) {
  std::vector<plan::Program> programs;
  for (const int tp : {1, 2, 4}) {
    if (tp > std::max(ranks, 2)) continue;
    for (const bool sequence_parallel : {false, true}) {
      for (const int zero : {0, 3}) {
        if ((sequence_parallel && tp == 1) || (zero > 0 && !sharded)) continue;
        plan::UniformOptions o{
            .tp = tp, .dp = zero > 0 ? 2 : 1, .zero = zero, .sequence_parallel = sequence_parallel};
        o.micro_batch = sequences;
        o.global_batch = sequences * o.dp * 2;
        o.precision = precision;
        o.sequence = tokens;
        const base::Result<plan::Plan> plan = plan::uniform_plan(model, "local", 1, o);
        if (!plan) continue;  // tp does not divide this model
        base::Result<plan::Program> program = plan::lower(*plan, model);
        if (program) programs.push_back(*std::move(program));
      }
    }
  }
  return programs;
}

base::Result<std::vector<plan::Program>> communicating_programs(const model::ModelSpec& model,
                                                                model::Precision precision,
                                                                int world, std::int64_t sequences,
                                                                std::int64_t tokens) {
  std::vector<plan::Program> programs;
  for (const auto& [tp, sequence_parallel, zero] :
       {std::tuple{world, false, 0}, {world, true, 0}, {1, false, 0}, {1, false, 3}}) {
    plan::UniformOptions o{
        .tp = tp, .dp = world / tp, .zero = zero, .sequence_parallel = sequence_parallel};
    o.micro_batch = sequences;
    o.global_batch = sequences * o.dp;
    o.precision = precision;
    o.sequence = tokens;
    const base::Result<plan::Plan> plan = plan::uniform_plan(model, "local", 1, o);
    if (!plan) continue;  // tp does not divide this model
    TRY(programs.emplace_back(), plan::lower(*plan, model));
  }
  return programs;
}

}  // namespace orrery::executor
