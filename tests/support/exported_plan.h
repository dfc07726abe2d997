#pragma once
/// The plan that a framework's file says, by the reader of plan/import/.
#include <string>

#include "plan/export/export.h"
#include "plan/import/import.h"

namespace orrery::tests {

inline base::Result<plan::ImportedPlan> read_back(plan::Framework framework,
                                                  const plan::ExportedPlan& exported,
                                                  const model::ModelSpec& model) {
  using enum plan::Framework;
  // Of sequence and precision, what the file does not say: the user gives them.
  const bool says_sequence =
      framework == kMegatron || framework == kMegatronBridge || framework == kTorchTitan;
  plan::ImportTarget target{.model = model,
                            .cluster = exported.plan.cluster,
                            .hosts = exported.plan.hosts,
                            .devices = exported.plan.world_size(),
                            .sequence = says_sequence ? 0 : exported.plan.sequence,
                            .precision = {},
                            .beside = exported.beside};
  if (framework == kGalvatron) target.precision = exported.plan.precision;
  switch (framework) {
    case plan::Framework::kMegatron: return plan::import_megatron(exported.text, "run.sh", target);
    case plan::Framework::kMegatronBridge:
      return plan::import_megatron_bridge(exported.text, "plan.py", target);
    case plan::Framework::kTorchTitan:
      return plan::import_torchtitan(exported.text, "job.toml", target);
    case plan::Framework::kDeepSpeed: {
      TRY(const auto root, base::Node::parse_text(exported.text, "ds.json"));
      return plan::import_deepspeed(root, target);
    }
    case plan::Framework::kAccelerate: {
      TRY(const auto root, base::Node::parse_text(exported.text, "fsdp.yaml"));
      return plan::import_accelerate(root, target);
    }
    case plan::Framework::kGalvatron: {
      TRY(const auto root, base::Node::parse_text(exported.text, "galvatron.json"));
      return plan::import_galvatron(root, target);
    }
  }
  __builtin_unreachable();
}

}  // namespace orrery::tests
