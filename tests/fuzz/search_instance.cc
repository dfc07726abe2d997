// The instance reader over arbitrary bytes: an instance that travels back unchanged and whose
// answer the checker accepts, or diagnostics.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "search/proof/certificate_check.h"
#include "search/table/instance.h"
#include "search/table/instance_program.h"
#include "tests/unit/search/instance_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const auto root =
      base::Node::parse_text({reinterpret_cast<const char*>(data), size}, "instance.json");
  if (!root) return 0;
  const auto instance = search::read_instance(*root);
  if (!instance) {
    ORRERY_CHECK(!instance.error().empty());
    return 0;
  }
  // Mutations of `count` make instances larger than a fuzzer has time for.
  if (instance->layers.size() > 200) return 0;
  const base::Json json = search::to_json(*instance);
  const auto again = base::Node::parse_text(base::to_text(json), "again.json");
  ORRERY_CHECK(again.has_value());
  const auto back = search::read_instance(*again);
  ORRERY_CHECK(back.has_value() && search::to_json(*back) == json);
  const search::Solution solution = search::solve_instance(*instance, 2000);
  ORRERY_CHECK(search::check_solution(*instance, solution).holds());
  return 0;
}
