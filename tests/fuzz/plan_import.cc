// The readers of other tools' plans over arbitrary bytes: a plan that is valid, or diagnostics.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "plan/import/import.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  model::ModelSpec spec;
  spec.name = "small";
  spec.layers = spec.heads = spec.kv_heads = spec.ffn = spec.max_positions = 8;
  const plan::ImportTarget target{.model = spec, .cluster = "c", .devices = 8, .precision = {}};
  const auto check = [&](const base::Result<plan::ImportedPlan>& imported) {
    if (!imported) {
      ORRERY_CHECK(!imported.error().empty());
      return;
    }
    ORRERY_CHECK(plan::validate(imported->plan, spec).empty() && imported->plan.world_size() <= 8);
  };
  check(plan::import_megatron(text, "run.sh", target));
  check(plan::import_megatron_bridge(text, "plan.py", target));
  check(plan::import_torchtitan(text, "job.toml", target));
  const auto root = base::Node::parse_text(text, "plan.yaml");
  if (!root) return 0;
  check(plan::import_galvatron(*root, target));
  check(plan::import_deepspeed(*root, target));
  check(plan::import_accelerate(*root, target));
  return 0;
}
