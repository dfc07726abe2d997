#pragma once
/// What `--precision` knows, for lists. Terms: model/dtype.h; formulas: docs/models/precision.md.
#include <string_view>
#include <vector>

#include "model/dtype.h"

namespace orrery::model {

struct PrecisionEntry {
  std::string_view name, description, source;
};
std::vector<PrecisionEntry> list_precisions();

}  // namespace orrery::model
