#include "plan/import/import.h"

#include <algorithm>

namespace orrery::plan {

Plan plan_for(const ImportTarget& target) {
  Plan plan;
  plan.model = target.model.name;
  plan.model_fingerprint = target.model.fingerprint();
  plan.cluster = target.cluster;
  plan.hosts = target.hosts;
  return plan;
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
