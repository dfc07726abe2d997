// The trace reader over arbitrary bytes: a timeline that travels back unchanged, or diagnostics.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "plan/program/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const auto root =
      base::Node::parse_text({reinterpret_cast<const char*>(data), size}, "trace.json");
  if (!root) return 0;
  const auto timeline = plan::read_timeline(*root);
  if (!timeline) {
    ORRERY_CHECK(!timeline.error().empty());
    return 0;
  }
  const auto again = base::Node::parse_text(plan::to_text(*timeline), "again.json");
  ORRERY_CHECK(again.has_value());
  const auto back = plan::read_timeline(*again);
  ORRERY_CHECK(back.has_value() && *back == plan::canonical(*timeline));
  return 0;
}
