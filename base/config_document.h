#pragma once
/// Private to base/config*.cc: the tree behind `Node`.

#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"

namespace orrery::base {

struct ConfigEntry {
  Node::Kind kind = Node::Kind::kNull;
  bool quoted = false;
  std::uint32_t line = 0;
  std::uint32_t column = 0;
  std::string text = {};  ///< scalars
  /// lists: entries; objects: key, value, key, value, …
  std::vector<std::uint32_t> children = {};
};

/// Nodes in the order of the file; entry 0 is the root.
struct ConfigDocument {
  std::string name;
  std::vector<ConfigEntry> entries;

  [[nodiscard]] SourceSpan span(std::uint32_t index) const {
    return {name, entries[index].line, entries[index].column};
  }
};

}  // namespace orrery::base
