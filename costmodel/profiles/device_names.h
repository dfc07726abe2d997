#pragma once
#include <string_view>

namespace orrery::costmodel {

/// Whether a profile's device names a cluster's: "A100" and "A100-SXM4" name "A100-SXM4-80GB"; a
/// processor's name names the cores of it.
bool names_device(std::string_view given, std::string_view device);

}  // namespace orrery::costmodel
