#include "costmodel/kind_runs.h"

#include "base/numbers.h"

namespace orrery::costmodel {

std::vector<KindRun> kind_runs(const topologies::Topology& topology) {
  const auto models = topology.device_models();
  const auto ranks = as_int(topology.device_count());
  if (models.size() == 1) return {{ranks, 0}};
  std::vector<std::size_t> same;  // [model] the first that says the same
  for (const topologies::DeviceModel& model : models)
    same.push_back(as_index(std::ranges::find(models, model) - models.begin()));
  std::vector<KindRun> runs;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto kind = same[as_index(&topology.device_model(as_u32(rank)) - models.data())];
    if (runs.empty() || runs.back().kind != kind) runs.push_back({rank, kind});
    runs.back().end = rank + 1;
  }
  return runs;
}

}  // namespace orrery::costmodel
