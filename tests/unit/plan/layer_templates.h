#pragma once
/// What tests of lowering look up in the templates of one layer.
#include <gtest/gtest.h>

#include <string_view>

#include "plan/lowering/lower.h"

namespace orrery::plan {

/// The first operation of that name.
inline const Op& op_of(const LayerTemplates& t, TemplateId id, std::string_view name) {
  for (const Op& op : t.program.templates[id].ops)
    if (op.name == name) return op;
  ADD_FAILURE() << "no " << name;
  return t.program.templates[id].ops.front();
}

inline std::int64_t persistent_bytes(const LayerTemplates& t) {
  std::int64_t bytes = 0;
  for (const auto& s : t.program.classes[0].persistent)
    bytes += t.program.buffers[s.buffer].bytes();
  return bytes;
}

}  // namespace orrery::plan
