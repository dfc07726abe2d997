#pragma once
/// \file
/// What the degrees of a layer ask of its block: for the check of a plan, and for the list of
/// strategies (search/space/decision_tree.h).
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/spec.h"

namespace orrery::plan {

struct Extent {
  std::int64_t size = 0;
  std::string_view of;  // "heads"
};
/// What tensor ranks share out: tp divides every one of them.
std::vector<Extent> tensor_extents(const model::ModelSpec& block);
/// What tp, or cp, above 1 would split and nothing here runs split: "a norm over all heads". Empty:
/// there is none.
std::string_view unsplit_by_tensor(const model::ModelSpec& block);
std::string_view unsplit_by_context(const model::ModelSpec& block);

}  // namespace orrery::plan
