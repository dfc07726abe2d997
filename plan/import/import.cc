#include "plan/import/import.h"

#include <algorithm>

namespace orrery::plan {

Plan plan_for(const ImportTarget& target) {
  Plan plan;
  plan.model = target.model.name;
  plan.model_fingerprint = target.model.fingerprint();
  plan.adapter = target.model.adapter;
  plan.cluster = target.cluster;
  plan.hosts = target.hosts;
  return plan;
}

LayerStrategy vocabulary_like(LayerStrategy layer) {
  layer.sequence_parallel = false;
  layer.tensor_pieces = 1;
  layer.recompute = Recompute::kNone;
  layer.drop_experts();
  layer.operators = ShardedOperators::kAll;
  layer.slices = 1;
  return layer;
}

void keep_experts_where_they_are(Plan& plan, const model::ModelSpec& model) {
  const auto has_experts = [&](std::int64_t layer) {
    return model.of_kind(model.kind_of(layer)).experts > 0;
  };
  const auto mixture = [](const model::BlockRun& run) { return run.shape.experts > 0; };
  if (std::ranges::none_of(model.runs, mixture)) return;
  std::int64_t layer = 0;
  for (Stage& stage : plan.stages) {
    std::vector<LayerRun> single;
    for (const LayerRun& run : stage.runs) {
      for (int i = 0; i < run.count && layer < model.layers; ++i, ++layer) {
        single.push_back({1, run.strategy});
        if (!has_experts(layer)) single.back().strategy.drop_experts();
      }
    }
    stage.runs = std::move(single);
  }
}

base::Result<ImportedPlan> validated(ImportedPlan imported, const model::ModelSpec& model,
                                     const std::vector<FaultPlace>& places) {
  base::Diagnostics faults = validate(imported.plan, model);
  for (base::Diagnostic& fault : faults) {
    const auto place = std::ranges::find_if(places, [&](const FaultPlace& p) {
      return fault.message.find(p.text) != std::string::npos;
    });
    if (place != places.end()) fault.where = place->where;
  }
  if (!faults.empty()) return base::fail(std::move(faults));
  return imported;
}

}  // namespace orrery::plan
