// The plan reader over arbitrary bytes: it returns a plan that travels back unchanged, or
// diagnostics, and never anything else.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "plan/program/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const auto root =
      base::Node::parse_text({reinterpret_cast<const char*>(data), size}, "plan.json");
  if (!root) return 0;
  const auto plan = plan::read_plan(*root);
  if (!plan) {
    ORRERY_CHECK(!plan.error().empty());
    return 0;
  }
  const auto again = base::Node::parse_text(base::to_text(plan::to_json(*plan)), "again.json");
  ORRERY_CHECK(again.has_value());
  const auto back = plan::read_plan(*again);
  ORRERY_CHECK(back.has_value() && *back == *plan);
  // Against any model: faults, never a crash.
  model::ModelSpec spec;
  spec.layers = spec.heads = spec.kv_heads = spec.ffn = spec.max_positions = 12;
  static_cast<void>(plan::validate(*plan, spec));
  return 0;
}
