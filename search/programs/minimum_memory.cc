#include "search/programs/minimum_memory.h"

#include <algorithm>
#include <vector>

#include "base/numbers.h"
#include "search/programs/layer_order.h"

namespace orrery::search {
namespace {

LayerAnswer minimum_memory_stage(const PipelineStage& stage, int layers) {
  const LayerProblem& p = stage.layers;
  const auto held = [&](const std::vector<std::int32_t>& sequence) {
    const auto last = as_index(p.options[as_index(sequence.back())].layout);
    return peak_of(p, sequence) + (stage.departure_bytes.empty() ? 0 : stage.departure_bytes[last]);
  };
  LayerAnswer best{.sequence = {}, .memory_bytes = kForbidden};
  const auto offer = [&](const std::vector<std::int32_t>& sequence) {
    if (const std::int64_t bytes = held(sequence); bytes < best.memory_bytes)
      best = {.sequence = sequence, .memory_bytes = bytes};
  };
  const auto options = static_cast<std::int32_t>(p.options.size());
  for (std::int32_t o = 0; o < options; ++o) offer(std::vector<std::int32_t>(as_index(layers), o));
  std::vector<std::int32_t> sequence = best.sequence;
  for (std::int32_t o = 0; o < options; ++o) {
    sequence.back() = o;
    offer(sequence);
  }
  return best;
}

std::int64_t excess(const PipelineStage& stage, const LayerAnswer& answer) {
  return answer.memory_bytes - stage.layers.budget_bytes;
}

/// Hands one layer of the fullest stage on. False: that would not lower the highest excess.
bool relieve(const PipelineProblem& pipeline, std::vector<LayerAnswer>& stages) {
  const auto count_of = [&](std::size_t i) { return as_int(stages[i].sequence.size()); };
  const auto allows = [&](std::size_t i, int count) {
    return pipeline.stages[i].fewest <= count && count <= pipeline.stages[i].most;
  };
  std::size_t full = 0;
  for (std::size_t i = 1; i < stages.size(); ++i) {
    if (excess(pipeline.stages[i], stages[i]) > excess(pipeline.stages[full], stages[full]))
      full = i;
  }
  const std::int64_t highest = excess(pipeline.stages[full], stages[full]);
  if (!allows(full, count_of(full) - 1)) return false;
  LayerAnswer fewer = minimum_memory_stage(pipeline.stages[full], count_of(full) - 1), more;
  if (excess(pipeline.stages[full], fewer) >= highest) return false;
  std::size_t to = full;
  std::int64_t least = highest;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (i == full || !allows(i, count_of(i) + 1)) continue;
    LayerAnswer grown = minimum_memory_stage(pipeline.stages[i], count_of(i) + 1);
    if (excess(pipeline.stages[i], grown) >= least) continue;
    least = excess(pipeline.stages[i], grown);
    more = std::move(grown);
    to = i;
  }
  if (to == full) return false;
  stages[full] = std::move(fewer);
  stages[to] = std::move(more);
  return true;
}

}  // namespace

PipelineAnswer minimum_memory(const PipelineProblem& pipeline) {
  PipelineAnswer answer;
  const int stages = as_int(pipeline.stages.size()), extra = pipeline.layers % stages;
  for (int i = 0; i < stages; ++i) {
    answer.stages.push_back(minimum_memory_stage(
        pipeline.stages[as_index(i)], pipeline.layers / stages + (stages - i <= extra ? 1 : 0)));
  }
  while (relieve(pipeline, answer.stages)) continue;
  return answer;
}

}  // namespace orrery::search
