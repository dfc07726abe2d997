#pragma once
#include <string>
#include <string_view>

#include "base/result.h"

namespace orrery::cli {

/// A cluster for "so many of that device": the catalog's host that has it, as often as needed.
struct GpuCluster {
  std::string cluster;
  int hosts = 1;
};

/// "64xH100" is 8 hosts of `dgx-h100`. The device is the name of a device model of the catalog
/// ("H100-SXM5-80GB") or its first word, in any case. Of several hosts that have such a device the
/// one that is called dgx-<first word> is meant.
///
/// Errors: kBadValue (no count and device), kNotFound (no host has the device), kInconsistent (the
/// number is not one of whole hosts, or several hosts have the device: the hint names both
/// neighbours, or the hosts).
base::Result<GpuCluster> cluster_of_gpus(std::string_view text);

}  // namespace orrery::cli
