// The strict reader over arbitrary bytes: it returns a tree or diagnostics with a place, and never
// anything else.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/config.h"

namespace {

using orrery::base::Node;

void visit(const Node& node) {
  static_cast<void>(node.as_int64());
  static_cast<void>(node.as_double());
  static_cast<void>(node.as_bool());
  static_cast<void>(node.as_string());
  static_cast<void>(node.as_seconds());
  static_cast<void>(node.as_bytes());
  static_cast<void>(node.as_bandwidth());
  static_cast<void>(node.as_flops_rate());
  ORRERY_CHECK(!node.describe().empty());
  for (const Node& item : node.items()) visit(item);
  for (const auto& member : node.members()) {
    ORRERY_CHECK(node.find(member.key).has_value());
    visit(member.value);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const char* name : {"input.yaml", "input.json"}) {
    const auto node = Node::parse_text(text, name);
    if (node) {
      visit(*node);
    } else {
      ORRERY_CHECK(!node.error().empty() && node.error().front().where.file == name);
    }
  }
  return 0;
}
