#pragma once
/// The plan that a framework's file says, by the reader of plan/import/.
#include <string>

#include "plan/export/export.h"
#include "plan/import/import.h"

namespace orrery::tests {

inline base::Result<plan::ImportedPlan> read_back(plan::Framework framework,
                                                  const plan::ExportedPlan& exported,
                                                  const model::ModelSpec& model) {
  const plan::ImportTarget target{.model = model,
                                  .cluster = exported.plan.cluster,
                                  .hosts = exported.plan.hosts,
                                  .devices = exported.plan.world_size(),
                                  .precision = {}};
  switch (framework) {
    case plan::Framework::kMegatron: return plan::import_megatron(exported.text, "run.sh", target);
    case plan::Framework::kTorchTitan:
      return plan::import_torchtitan(exported.text, "job.toml", target);
  }
  __builtin_unreachable();
}

}  // namespace orrery::tests
