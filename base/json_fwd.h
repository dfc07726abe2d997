#pragma once
/// The name of a JSON document, for headers: parsing nlohmann/json.hpp takes longer than most of
/// our sources. Whoever makes or reads documents includes base/json.h.

#include <nlohmann/json_fwd.hpp>

namespace orrery::base {

using Json = nlohmann::json;

}  // namespace orrery::base
